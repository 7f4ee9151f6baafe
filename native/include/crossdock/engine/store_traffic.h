// The engine's traffic with a kvstore: reads of what a prompt lacks here, and write-back of what it
// computed. Places and leases are arranged by the fronts; this class moves the bytes, verifies
// them, and keeps both kinds bounded.
//
// A read:   submit(awaits_load) -> StoreLookup -> StoreFound -> scheduler's LoadOrder -> ReadSpans
//           -> checksums verified -> scheduler.loaded -> StoreReadDone
// A write:  prompt computed -> StoreOffer (blocks pinned) -> StorePlaces -> WriteSpans, Fence ->
//           StoreWritten (unpinned)
// An answer that does not come in time counts as "nothing": the prompt is computed, the offer is
// dropped. A transfer that takes too long ends with its pair.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_set>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/engine/messages.h"
#include "crossdock/engine/pair_ledger.h"
#include "crossdock/sched/scheduler.h"
#include "crossdock/transfer/transfers.h"

namespace crossdock {

class StoreTraffic {
 public:
  using Emit = std::function<void(const link::Event&)>;

  StoreTraffic(const KvLayout& layout, Scheduler& scheduler, Transfers& transfer, Emit emit);

  // Asks the store for the chain of a sequence that was submitted with awaits_load.
  void look_up(SequenceId id, std::span<const BlockHash> chain, uint64_t tick);
  void found(const link::StoreFound& answer);
  void load(const LoadOrder& order, uint64_t tick);
  // The sequence was admitted. Without a LoadOrder by now the lease is not needed: given back.
  void started(SequenceId id);
  // The sequence is going. True: reads are in flight, and `on_done` will finish it in their time.
  bool cancel(SequenceId id);

  // Offers the final blocks of a computed prompt.
  void offer(std::span<const BlockHash> chain, std::span<const BlockId> blocks, uint64_t tick);
  void places(const link::StorePlaces& answer, uint64_t tick);
  // Another store answers from now on: what the last one was offered is news to it.
  void store_connected() { offered_.clear(); }

  // The store that the operation went to; nothing when it is not the store's.
  std::optional<PeerId> on_done(const OperationDone& done, uint64_t tick);
  // Gives up answers that do not come. Returns the stores whose transfers are overdue: the end of
  // their pair ends those.
  std::vector<PeerId> expire(uint64_t tick);
  uint64_t next_tick() const;

  uint64_t num_blocks_read() const { return num_blocks_read_; }
  uint64_t num_blocks_written() const { return num_blocks_written_; }
  uint64_t num_blocks_bad() const { return num_blocks_bad_; }
  uint64_t num_reads_declined() const { return num_reads_declined_; }

 private:
  struct Load {
    uint64_t lease_id = 0;
    PeerId peer = 0;
    std::vector<BlockHash> chain;           // asked for
    std::vector<link::StoredBlock> blocks;  // of the chain's beginning
    uint64_t deadline_tick = 0;             // of the answer, then of the read
    bool answered = false;
    bool cancelled = false;
    LoadOrder order;
    bool reading = false;
  };
  struct Offer {
    std::vector<BlockHash> hashes;
    std::vector<BlockId> blocks;  // pinned
    PeerId peer = 0;
    uint64_t deadline_tick = 0;  // of the answer, then of the write
    uint64_t lease_id = 0;
    std::vector<link::StoredBlock> placed;
    bool writing = false;
    uint32_t num_outstanding = 0;
    Status failure;
  };

  bool worth_reading(uint32_t num_blocks) const;
  link::StoredBlock checksum(const link::StoredBlock& block, BlockId at) const;
  void finish_load(SequenceId id, Load& load, const Status& status, uint64_t tick);
  void drop_load(SequenceId id, Load& load);
  // The store does not hold these: they are offered again when they are computed or met again.
  void forget(std::span<const BlockHash> hashes);
  void finish_offer(uint64_t offer_id);

  const KvLayout& layout_;
  Scheduler& scheduler_;
  Transfers& transfer_;
  Emit emit_;
  std::map<SequenceId, Load> loads_;
  std::map<uint64_t, Offer> offers_;
  std::map<OperationId, SequenceId> reads_;
  std::map<OperationId, uint64_t> writes_;
  std::unordered_set<BlockHash> offered_;  // lately; the store knows better, this saves the asking
  uint64_t next_offer_ = 1;
  OperationId next_operation_;
  TransferSpeed speed_;
  uint64_t num_blocks_read_ = 0;
  uint64_t num_blocks_written_ = 0;
  uint64_t num_blocks_bad_ = 0;
  uint64_t num_reads_declined_ = 0;
};

}  // namespace crossdock
