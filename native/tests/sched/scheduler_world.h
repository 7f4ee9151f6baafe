// A fleet around one scheduler, in miniature: an executor whose "KV" is a number for every slot of
// every block, peers that write grants and read sources at any time they may, an outer tier that
// fills blocks, callers that cancel. It proves by the numbers that no block is read before it is
// written or reused while somebody may touch it, and it knows the plan's rules.
//
// The KV of a position is a hash of the tokens up to it, and the next token is a function of that,
// so what a sequence must generate depends on its prompt alone.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <vector>

#include "crossdock/sched/scheduler.h"

namespace crossdock {

class SchedulerWorld {
 public:
  struct Request {
    SequenceId id = 0;
    SequenceRole role = SequenceRole::kLocal;
    std::vector<int32_t> prompt;
    uint32_t max_new_tokens = 0;
    uint64_t order = 0;  // of arrival
    bool awaits_load = false;
    bool was_preempted = false;
    bool ended = false;
    bool revoke_asked = false;
    std::vector<BlockId> granted;  // a target's blocks, which its peer may write
    uint32_t num_matched = 0;
    std::optional<LoadOrder> load;
  };

  explicit SchedulerWorld(const SchedulerConfig& config);

  // --- events; each checks conservation afterwards
  bool submit(Request request);   // a local or a source
  bool reserve(Request request);  // false where it is refused for now
  void load_ready(SequenceId id, uint32_t num_blocks);
  void finish_load(SequenceId id, uint32_t num_good);
  void activate(SequenceId id);
  void quarantine(SequenceId id);
  void end_quarantine(SequenceId id);
  void finish(SequenceId id);  // also cancels
  void pin(SequenceId id);     // the whole blocks computed so far, as for a write-back
  bool unpin();
  void plan();
  void complete_step();  // the executor computes, then step_done
  void abandon_step() { pending_.clear(); }
  // Does what ends every waiting, until nobody is left; false where somebody waits for ever.
  bool drain();
  // A peer writes into the blocks it was granted, quarantined ones included.
  void write_grant(SequenceId id, bool garbage);

  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const std::map<SequenceId, Request>& requests() const { return requests_; }
  const StepPlan& last_plan() const { return plan_; }
  bool has_pending_step() const { return !pending_.empty(); }
  uint64_t num_preemptions() const { return num_preemptions_; }
  uint64_t num_revocations() const { return num_revocations_; }
  uint64_t num_finished() const { return num_finished_; }
  uint64_t num_computed() const { return num_computed_; }
  SequenceState state(SequenceId id) const { return scheduler_.state(id); }

 private:
  // What the executor holds on to while it computes, whatever happens meanwhile.
  struct PendingEntry {
    PlanEntry entry;
    uint64_t order;  // tells the sequence from a later one of the same id
    std::vector<int32_t> tokens;
    std::vector<BlockId> table;
  };

  static uint64_t next_kv(uint64_t kv, int32_t token);
  uint64_t& kv(const std::vector<BlockId>& table, uint32_t position);
  void fill(std::span<const int32_t> tokens, const std::vector<BlockId>& table, uint32_t begin,
            uint32_t end);
  void expect_kv(std::span<const int32_t> tokens, const std::vector<BlockId>& table, uint32_t end);
  void check_tokens(const Request& request);
  Request* request_of(const PendingEntry& pending);
  void check_plan();
  void check_preemption();
  void check_admission();
  void check();

  SchedulerConfig config_;
  Scheduler scheduler_;
  std::map<SequenceId, Request> requests_;
  std::vector<uint64_t> slots_;  // KV by block and slot
  std::vector<std::vector<BlockId>> pins_;
  StepPlan plan_;  // the last, copied
  std::vector<PendingEntry> pending_;
  std::vector<SequenceId> waiting_before_;  // of the last plan, in the order of admission
  std::vector<SequenceId> running_before_;  // in arrival order
  uint64_t num_arrivals_ = 0;
  uint64_t num_preemptions_ = 0;
  uint64_t num_revocations_ = 0;
  uint64_t num_finished_ = 0;
  uint64_t num_computed_ = 0;
  uint64_t tick_ = 0;
};

}  // namespace crossdock
