// The writes of the handoffs that this engine sends: which blocks of a source went out, which are
// still to go, what is in flight. It carries out what HandoffTable decides, and reports back.
//
// Complete blocks go out after each chunk, while the next one computes. The last chunk's go in
// groups of layers as the layers finish, so that little is left to send when the first token is
// sampled. After the last write comes one fence. For a peer of another KV dtype whole blocks are
// converted in order, as staging has room.
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
  BlockChecksum converted;  // over the blocks converted so far
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

  // `target`: of the peer's pool; it converts from ours.
  void prepare(const HandoffId& id, SequenceId sequence_id, PairId pair, const KvLayout& target);
  void grant(const handoff_action::StartWrites& action);
  const Sending* find(const HandoffId& id) const;

  // A chunk is done: what is complete now goes out.
  void post_complete(const HandoffId& id);
  // Within the step of the last chunk: layers before `num_layers_done` are in the slab.
  void post_layers(const HandoffId& id, uint32_t num_layers_done);
  // The prompt is computed: the rest goes out, then the fence.
  void post_rest(const HandoffId& id, const ChoiceState& choice);

  // Posts no more. What is outstanding keeps its sources pinned, so the sequence may go.
  void stop(const HandoffId& id);
  // What HandoffTable is to be told, if the handoff's operations have come to an end.
  std::optional<HandoffEvent> settle(const HandoffId& id);
  // The handoff that `operation` belongs to, after it was accounted for; nothing if it is not ours.
  std::optional<HandoffId> on_done(const OperationDone& done);
  // The handoff is final: unpins and forgets.
  void finish(const HandoffId& id);

 private:
  Sending& at(const HandoffId& id);
  OperationId post(Sending& sending, std::vector<CopySpan> spans);
  void post_blocks(Sending& sending, uint32_t end_block);
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
  std::map<HandoffId, Sending> sendings_;
  std::map<OperationId, HandoffId> operations_;
  Staging staging_;
  std::map<OperationId, std::vector<uint64_t>> staged_;  // slots that a write reads
  std::deque<HandoffId> waiting_;                        // for a slot, first come first served
};

}  // namespace crossdock
