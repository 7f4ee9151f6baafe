#include "crossdock/sched/scheduler.h"

#include <gtest/gtest.h>

namespace crossdock {
namespace {

std::vector<int32_t> iota(uint32_t n, int32_t first) {
  std::vector<int32_t> v(n);
  for (uint32_t i = 0; i < n; ++i) v[i] = first + static_cast<int32_t>(i);
  return v;
}

TEST(Scheduler, RunsALocalSequenceToItsEnd) {
  Scheduler s({.num_blocks = 8, .context_tokens_max = 256});
  ASSERT_TRUE(s.submit({.id = 1, .prompt = iota(40, 0), .max_new_tokens = 30}).ok());
  uint32_t n = 0;
  uint64_t tick = 0;
  while (s.contains(1)) {
    const StepPlan& plan = s.plan(++tick);
    ASSERT_EQ(plan.entries.size(), 1u);
    ++n;
    const TokenResult r{0, 7, n == 30};
    s.step_done({&r, 1}, tick);
    s.check();
    if (n == 30) s.finish(1);
    s.check();
  }
  EXPECT_EQ(s.tree().num_blocks(), 2u);
}

}  // namespace
}  // namespace crossdock
