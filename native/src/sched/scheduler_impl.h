// The scheduler's state, and the steps of its decisions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "crossdock/sched/step_time_fit.h"
#include "sequence.h"
#include "sequence_queue.h"

namespace crossdock {

struct Scheduler::Impl {
  explicit Impl(const SchedulerConfig& config);

  // --- events (scheduler.cpp)
  Status check_fits(SequenceId id, std::span<const int32_t> prompt, uint32_t max_new_tokens) const;
  Status check_room(const Sequence& target, uint32_t num_needed) const;
  uint32_t slot_of(SequenceId id) const;
  const Sequence& at(SequenceId id) const { return slots[slot_of(id)]; }
  uint32_t open_slot(SequenceId id, SequenceRole role, std::span<const int32_t> prompt,
                     uint32_t max_new_tokens, const BlockHash& root, uint32_t first_generated);
  void close_slot(uint32_t slot);
  void append_token(Sequence& sequence, int32_t token);
  // Publishes the whole blocks among the computed positions.
  void publish(Sequence& sequence, uint64_t tick);
  void start_running(uint32_t slot);
  void stop_running(uint32_t slot);
  void release_blocks(Sequence& sequence);
  void end_plan();
  void leave_reserved(Sequence& sequence);

  // --- the plan (scheduler_plan.cpp)
  void make_plan(uint64_t tick);
  void evict_to_low_watermark();
  bool acquire(uint32_t count, std::vector<BlockId>& table);
  void plan_decodes();
  bool plan_decode(uint32_t slot);
  void relieve(uint32_t slot);
  void serve_stalled();
  void break_standstill();
  void plan_chunks();
  void admit_queue(uint64_t tick);
  uint32_t chunk_max() const;
  bool has_chunk() const { return plan.entries.size() > plan.num_decodes; }
  bool has_room() const;
  uint32_t chunk_tokens(const Sequence& sequence) const;
  void plan_chunk(uint32_t slot);
  bool admit(uint32_t slot, uint64_t tick);
  void revoke_newest_grant();
  uint32_t newest_preemptable() const;
  bool others_hold_blocks(uint32_t slot) const;
  void preempt(uint32_t slot);
  void add_entry(uint32_t slot, uint32_t num_tokens);

  // Blocks to be left over by whoever takes some: one for each sequence that may need its next.
  uint32_t headroom() const { return num_growing + num_loading + num_reserved; }
  uint32_t num_active() const {
    return static_cast<uint32_t>(running.size()) + num_loading + num_reserved;
  }
  // Blocks that come back by events which are certain to come.
  uint32_t num_returning() const { return pool.num_quarantined() + num_revoking_blocks; }
  uint32_t num_available() const { return pool.num_free() + pool.num_cached_unreferenced(); }

  void check_sequences() const;
  void check_counts() const;

  SchedulerConfig config;
  uint32_t high_blocks = 0;  // the watermarks and the quarantine's bound, in blocks
  uint32_t low_blocks = 0;
  uint32_t quarantined_blocks_max = 0;

  BlockPool pool;
  PrefixTree tree;
  std::vector<Sequence> slots;
  std::vector<uint32_t> free_slots;
  std::unordered_map<SequenceId, uint32_t> slot_by_id;
  SequenceQueue queue;            // waiting, without those that await a load
  std::vector<uint32_t> running;  // slots in arrival order
  std::vector<uint32_t> pins;     // by block: references that the caller holds
  uint64_t num_arrivals = 0;

  uint32_t num_awaiting = 0;  // waiting for the outer tier's answer
  uint32_t num_loading = 0;
  uint32_t num_reserved = 0;
  uint32_t num_revoking = 0;         // of the reserved
  uint32_t num_revoking_blocks = 0;  // their unmatched blocks
  uint32_t num_growing = 0;          // running, and not a source
  uint32_t num_pins = 0;

  StepTimeFit fit;
  StepPlan plan;
  StepLoad load;                  // of the plan
  bool pending = false;           // between plan and step_done
  bool changed = false;           // an event came since the last plan that had nothing to do
  bool head_is_blocked = false;   // the first in the queue waits for blocks
  bool has_revoked = false;       // in this plan
  uint32_t tokens_left = 0;       // of this plan's budget
  std::vector<uint32_t> stalled;  // decodes that lack a block in this plan
  std::vector<uint32_t> closing;  // slots that are gone, but in the plan being executed
};

}  // namespace crossdock
