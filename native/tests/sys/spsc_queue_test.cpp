#include "crossdock/sys/spsc_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <thread>

namespace crossdock {
namespace {

constexpr int kPollTimeoutMs = 60'000;  // only a hang lasts as long

bool readable(const EventFd& event, int timeout_ms) {
  pollfd fd{event.fd(), POLLIN, 0};
  return ::poll(&fd, 1, timeout_ms) == 1;
}

class SpscQueueTest : public ::testing::Test {
 protected:
  SpscQueueTest() : wake_(std::move(EventFd::create()).value()) {}
  EventFd wake_;
};

TEST_F(SpscQueueTest, KeepsOrderOverManySegments) {
  SpscQueue<int> queue(wake_);
  EXPECT_FALSE(queue.pop().has_value());
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 1'000; ++i) queue.push(i);
    for (int i = 0; i < 1'000; ++i) ASSERT_EQ(queue.pop(), i);
    EXPECT_TRUE(queue.empty());
  }
}

TEST_F(SpscQueueTest, DestroysWhatWasNeverPopped) {
  auto value = std::make_shared<int>(1);
  {
    SpscQueue<std::shared_ptr<int>> queue(wake_);
    for (int i = 0; i < 200; ++i) queue.push(value);
    queue.pop();
    EXPECT_EQ(value.use_count(), 200);
  }
  EXPECT_EQ(value.use_count(), 1);
}

TEST_F(SpscQueueTest, APushWakesOnlyASleeper) {
  SpscQueue<int> queue(wake_);
  queue.push(1);
  EXPECT_FALSE(readable(wake_, 0));
  EXPECT_FALSE(queue.prepare_sleep());
  queue.pop();
  EXPECT_TRUE(queue.prepare_sleep());
  queue.push(2);
  EXPECT_TRUE(readable(wake_, kPollTimeoutMs));
  queue.finish_sleep();
  EXPECT_FALSE(readable(wake_, 0));
}

TEST_F(SpscQueueTest, TwoThreadsLoseNothingAndNeverMissAWakeUp) {
  constexpr uint64_t kCount = 300'000;
  SpscQueue<uint64_t> queue(wake_);
  std::thread producer([&] {
    for (uint64_t i = 0; i < kCount; ++i) {
      queue.push(i);
      for (uint64_t spin = 0; spin < i % 300; ++spin) asm volatile("" ::: "memory");
    }
  });
  uint64_t expected = 0;
  while (expected < kCount) {
    if (auto value = queue.pop()) {
      if (*value != expected) break;
      ++expected;
    } else if (queue.prepare_sleep()) {
      if (!readable(wake_, kPollTimeoutMs)) break;
      queue.finish_sleep();
    }
  }
  producer.join();
  EXPECT_EQ(expected, kCount);
}

}  // namespace
}  // namespace crossdock
