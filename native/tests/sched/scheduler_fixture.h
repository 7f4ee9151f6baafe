// What the scheduler's tests share: prompts, and steps that check after every event.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "crossdock/sched/scheduler.h"

namespace crossdock {

inline std::vector<int32_t> ramp(uint32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

class SchedulerTest : public testing::Test {
 protected:
  void make(const SchedulerConfig& config) { scheduler_ = std::make_unique<Scheduler>(config); }
  Scheduler& s() { return *scheduler_; }

  Status submit(SequenceId id, std::vector<int32_t> prompt, uint32_t max_new_tokens,
                SequenceRole role = SequenceRole::kLocal, bool awaits_load = false) {
    Status status = s().submit({.id = id,
                                .role = role,
                                .prompt = std::move(prompt),
                                .max_new_tokens = max_new_tokens,
                                .awaits_load = awaits_load});
    s().check();
    return status;
  }
  Result<Grant> reserve(SequenceId id, std::vector<int32_t> prompt, uint32_t max_new_tokens) {
    auto grant = s().reserve(
        {.id = id, .prompt = std::move(prompt), .max_new_tokens = max_new_tokens}, tick_);
    s().check();
    return grant;
  }
  void activate(SequenceId id) {
    s().activate(id, 1000, tick_);
    s().check();
  }
  void finish(SequenceId id) {
    s().finish(id);
    s().check();
  }
  const StepPlan& plan() {
    const StepPlan& plan = s().plan(++tick_);
    s().check();
    return plan;
  }
  // Completes the plan; the tokens count up from 5,000, so no two generated blocks are equal.
  void done(const StepPlan& plan) {
    std::vector<TokenResult> results;
    for (uint32_t i = 0; i < plan.entries.size(); ++i) {
      if (plan.entries[i].wants_logits) results.push_back({i, next_token_++, false});
    }
    s().step_done(results, tick_);
    s().check();
  }
  // One whole step.
  StepPlan step() {
    const StepPlan result = plan();
    if (!result.empty()) done(result);
    return result;
  }
  void steps(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) step();
  }

  std::unique_ptr<Scheduler> scheduler_;
  uint64_t tick_ = 0;
  int32_t next_token_ = 5000;
};

inline std::vector<SequenceId> ids_of(const StepPlan& plan) {
  std::vector<SequenceId> ids;
  for (const PlanEntry& entry : plan.entries) ids.push_back(entry.id);
  return ids;
}

}  // namespace crossdock
