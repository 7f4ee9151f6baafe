// The transfers of the handoffs that this engine sends: which blocks of a source went out, which
// are still to go, what is in flight. It carries out what HandoffTable decides, and reports back.
//
// Writes. The blocks that a chunk completes go out while it and the next one compute: in groups of
// layers as the layers finish, each about a 32nd of what the handoff sends (at least 1 MiB),
// so that as little is left when the first token is sampled. A prompt of many chunks has groups of
// all layers, whole blocks, which coalesce where they lie side by side here and there. After the
// last write comes one fence. Of a prompt of n chunks these are at most
//     32 + n writes, and one where the grant came late, and the fence;
// a write of whole blocks takes as many one-sided operations as it has runs that are contiguous on
// both sides, one of some layers takes one a block. For a peer of another KV dtype whole blocks are
// converted in order, as staging has room.
//
// Reads. Where the grant shows that the peer holds more of the prompt than is computed here, and
// its blocks mean the same bytes, they are read instead of computed if that is predicted to be
// faster. A prompt that continues one which this peer has decoded waits for its grant, bounded,
// before it computes anything; any other starts at once, and the grant is looked at between its
// chunks. The read is an operation of the handoff: until it has ended nothing is said to be
// stopped, so the peer keeps its blocks pinned and ours stay owned. What a failed read was to bring
// is computed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/engine/block_checksum.h"
#include "crossdock/engine/pair_ledger.h"
#include "crossdock/engine/staging.h"
#include "crossdock/handoff/handoff_table.h"
#include "crossdock/sched/scheduler.h"
#include "crossdock/transfer/transfers.h"

namespace crossdock {

struct Sending {
  HandoffId id;
  SequenceId sequence_id = 0;
  PairId pair = 0;
  KvLayout target;
  bool converts = false;  // the peer holds another dtype
  bool readable = false;  // its blocks are, byte for byte, what this engine would compute
  StreamId stream = 0;
  bool granted = false;
  bool computed = false;  // every block is final and the first token is known
  bool stopping = false;
  bool posted = false;  // a write went out: without a fence it may not have arrived yet
  bool fenced = false;
  uint32_t num_matched_blocks = 0;
  std::vector<BlockId> targets;
  uint32_t next_block = 0;    // blocks before it are posted, or matched and not sent
  uint32_t next_layer = 0;    // of the blocks from next_block on, layers before it are posted
  uint32_t ready_blocks = 0;  // conversion may go up to here
  uint32_t num_outstanding = 0;
  Status failure;
  BlockChecksum converted;                    // over the blocks converted so far
  uint64_t grant_deadline_tick = UINT64_MAX;  // while the source is held back for its grant
  bool declined = false;                      // computing is faster than reading
  OperationId read = 0;                       // in flight
  uint32_t num_blocks_reading = 0;
  bool waits_for_slot = false;
  std::vector<uint64_t> held;   // slots whose write failed: read until the pair is closed
  std::vector<BlockId> pinned;  // sources that outlive their sequence while writes read them
  ChoiceState choice;
  uint64_t num_bytes = 0;
  uint32_t num_transfers = 0;
  uint64_t transfer_ns = 0;
};

class Senders {
 public:
  // With `checksum`, a commit carries one over the blocks sent.
  Senders(const KvLayout& layout, Scheduler& scheduler, Transfers& transfer, bool checksum);

  struct Target {
    PairId pair = 0;
    KvLayout layout;        // of the peer's pool; it converts from ours
    bool readable = false;  // its blocks may be read into ours
  };
  // Whether a prompt of this chain is to be submitted with awaits_grant: the peer may well hold
  // more of it, and something is missing here.
  bool may_read(const Target& target, std::span<const BlockHash> chain) const;
  void prepare(const HandoffId& id, SequenceId sequence_id, const Target& target);
  // The prompt starts: its wait for the grant is bounded from now on.
  void opened(const HandoffId& id, uint64_t tick);
  void grant(const handoff_action::StartWrites& action, uint64_t tick);
  // Ends waits that have taken too long.
  void expire(uint64_t tick);
  uint64_t next_tick() const;
  const Sending* find(const HandoffId& id) const;

  // A chunk is done: what is complete now goes out, and the peer may be read for the next.
  void post_complete(const HandoffId& id, uint64_t tick);
  // Within the step that makes the blocks before end_block complete: layers before
  // `num_layers_done` are in the slab.
  void post_layers(const HandoffId& id, uint32_t end_block, uint32_t num_layers_done);
  // The prompt is computed: the rest goes out, then the fence.
  void post_rest(const HandoffId& id, const ChoiceState& choice);

  // Posts no more. What is outstanding keeps its sources pinned, so the sequence may go.
  void stop(const HandoffId& id);
  // What HandoffTable is to be told, if the handoff's operations have come to an end.
  std::optional<HandoffEvent> settle(const HandoffId& id);
  // The handoff that `operation` belongs to, after it was accounted for; nothing if it is not ours.
  std::optional<HandoffId> on_done(const OperationDone& done, uint64_t tick);
  // The handoff is final: unpins and forgets.
  void finish(const HandoffId& id);

  PairLedger& ledger() { return ledger_; }
  const PairLedger& ledger() const { return ledger_; }

 private:
  friend class EngineInspector;  // what a simulation's checkers look at

  Sending& at(const HandoffId& id);
  OperationId post(Sending& sending, std::vector<CopySpan> spans);
  uint32_t group_layers(const Sending& sending, uint32_t num_blocks) const;
  void post_range(Sending& sending, uint32_t end_block, uint32_t end_layer);
  void post_blocks(Sending& sending, uint32_t end_block);
  void consider_read(Sending& sending, uint64_t tick);
  void stop_waiting(Sending& sending, uint64_t tick);
  void read(Sending& sending, const LoadOrder& order);
  void finish_read(Sending& sending, const Status& status, uint64_t tick);
  void post_converted(Sending& sending);
  void release_staged(Sending& sending, const OperationDone& done);
  void await_slot(Sending& sending);
  void serve_waiting();
  void fence_if_due(Sending& sending);
  std::array<uint8_t, 16> checksum(const Sending& sending) const;

  const KvLayout& layout_;
  Scheduler& scheduler_;
  Transfers& transfer_;
  bool checksum_;
  OperationId next_operation_ = 1;
  StreamId next_stream_ = 1;
  PairLedger ledger_;
  std::map<HandoffId, Sending> sendings_;
  std::map<OperationId, HandoffId> operations_;
  Staging staging_;
  std::map<OperationId, std::vector<uint64_t>> staged_;  // slots that a write reads
  std::deque<HandoffId> waiting_;                        // for a slot, first come first served
};

}  // namespace crossdock
