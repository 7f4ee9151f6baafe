// A step allocates nothing in steady state: this program counts what operator new hands out.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "crossdock/sched/scheduler.h"

namespace {
uint64_t num_allocations = 0;
}

// Not inlined: a compiler that sees free() in a caller takes it for a mismatch with operator new.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace crossdock {
namespace {

class SchedulerAllocation : public testing::Test {
 protected:
  void submit(uint32_t num_tokens, uint32_t max_new_tokens) {
    std::vector<int32_t> prompt(num_tokens);
    for (int32_t& token : prompt) token = next_token_++;
    ASSERT_TRUE(
        scheduler_
            .submit(
                {.id = ++last_id_, .prompt = std::move(prompt), .max_new_tokens = max_new_tokens})
            .ok());
  }

  // One step; returns what plan and step_done allocated.
  uint64_t step() {
    const uint64_t before_plan = num_allocations;
    const StepPlan& plan = scheduler_.plan(++tick_);
    uint64_t spent = num_allocations - before_plan;
    num_entries_ = plan.entries.size();
    num_preempted_ += plan.preempted.size();
    results_.clear();
    ended_.clear();
    for (uint32_t i = 0; i < plan.entries.size(); ++i) {
      const PlanEntry& entry = plan.entries[i];
      if (!entry.wants_logits) continue;
      const bool finished = entry.first_position + 1 >= ends_at_;
      results_.push_back({i, next_token_++, finished});
      if (finished) ended_.push_back(entry.id);
    }
    const uint64_t before_done = num_allocations;
    scheduler_.step_done(results_, tick_);
    spent += num_allocations - before_done;
    for (const SequenceId id : ended_) scheduler_.finish(id);
    return spent;
  }

  Scheduler scheduler_{{.num_blocks = 700, .num_sequences_max = 64, .context_tokens_max = 2048}};
  uint64_t tick_ = 0;
  SequenceId last_id_ = 0;
  int32_t next_token_ = 0;
  uint32_t ends_at_ = UINT32_MAX;
  size_t num_entries_ = 0;
  uint64_t num_preempted_ = 0;
  std::vector<TokenResult> results_;
  std::vector<SequenceId> ended_;
};

TEST_F(SchedulerAllocation, NoneWhileSequencesDecode) {
  for (uint32_t i = 0; i < 16; ++i) submit(100 + i, 1000);
  for (int i = 0; i < 100; ++i) step();
  for (int i = 0; i < 800; ++i) {
    ASSERT_EQ(step(), 0u) << "step " << i;
    ASSERT_EQ(num_entries_, 16u);
  }
}

TEST_F(SchedulerAllocation, NoneWhileSequencesComeAndGoAndBlocksAreEvicted) {
  ends_at_ = 160;
  for (int i = 0; i < 400; ++i) {
    submit(128, 100);
    step();
  }
  for (int i = 0; i < 400; ++i) {
    submit(128, 100);
    ASSERT_EQ(step(), 0u) << "step " << i;
    ASSERT_GT(num_entries_, 20u);
  }
  ASSERT_GT(scheduler_.pool().num_cached_unreferenced(), 100u) << "the tree must be in use";
}

TEST_F(SchedulerAllocation, NoneWhilePreemptionIsTheRule) {
  // Each sequence that ends is replaced, so that the pool stays too small for all of them.
  ends_at_ = 600;
  const auto keep_full = [&] {
    for (size_t i = ended_.size(); i > 0; --i) submit(64, 800);
    return step();
  };
  for (uint32_t i = 0; i < 64; ++i) submit(64, 800);
  for (int i = 0; i < 4000; ++i) keep_full();
  const uint64_t num_before = num_preempted_;
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(keep_full(), 0u) << "step " << i;
  ASSERT_GT(num_preempted_, num_before);
}

}  // namespace
}  // namespace crossdock
