#include "crossdock/sys/clock.h"

#include <gtest/gtest.h>

#include "crossdock/sys/shared_memory.h"

namespace crossdock {
namespace {

TEST(ClockTest, AWaitLastsAtLeastItsTime) {
  auto clock = create_system_clock();
  ASSERT_TRUE(clock.ok());
  const uint64_t before = clock.value()->now_ns();
  clock.value()->wait(20);
  EXPECT_GE(clock.value()->now_ns() - before, 20'000'000u);
}

TEST(ClockTest, AWatchedDescriptorEndsAWait) {
  auto clock = create_system_clock();
  ASSERT_TRUE(clock.ok());
  auto event = EventFd::create();
  ASSERT_TRUE(event.ok());
  clock.value()->watch(event.value().fd());
  event.value().signal();
  clock.value()->wait(-1);  // for ever, if the descriptor did not count
}

}  // namespace
}  // namespace crossdock
