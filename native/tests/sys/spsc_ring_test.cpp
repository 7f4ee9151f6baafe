#include "crossdock/sys/spsc_ring.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <deque>
#include <optional>
#include <random>
#include <thread>

#include "crossdock/sys/shared_memory.h"

namespace crossdock {
namespace {

constexpr size_t kCapacityBytes = 4096;
constexpr int kPollTimeoutMs = 60'000;  // only a hang lasts as long
// Where a ring keeps its indices; the tests that break them need to know.
constexpr size_t kTailOffset = 64;
constexpr size_t kHeadOffset = 128;
constexpr size_t kDataOffset = 256;

std::vector<std::byte> record_of(size_t length, uint64_t seed) {
  std::vector<std::byte> record(length);
  for (size_t i = 0; i < length; ++i) record[i] = std::byte((seed * 131 + i * 7) & 0xff);
  return record;
}

// The sequence number that a stress test puts in front of its record.
std::vector<std::byte> numbered_record(uint64_t index) {
  std::vector<std::byte> record = record_of(8 + index % 150, index);
  std::memcpy(record.data(), &index, sizeof index);
  return record;
}

class SpscRingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto memory = MappedMemory::create("ring-test", SpscRing::memory_bytes(kCapacityBytes));
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    memory_.emplace(std::move(memory).value());
    auto event = EventFd::create();
    ASSERT_TRUE(event.ok());
    event_.emplace(std::move(event).value());
    SpscRing::format(memory_->data(), kCapacityBytes);
  }

  SpscRing attach() {
    auto ring = SpscRing::attach(memory_->data(), memory_->size(), event_->fd());
    EXPECT_TRUE(ring.ok()) << ring.status().to_string();
    return std::move(ring).value();
  }

  template <typename T>
  void overwrite(size_t offset, T value) {
    std::memcpy(memory_->data() + offset, &value, sizeof value);
  }

  bool readable(int timeout_ms) {
    pollfd fd{event_->fd(), POLLIN, 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
  }

  std::optional<MappedMemory> memory_;
  std::optional<EventFd> event_;
};

// Pops `count` numbered records, sleeping on the eventfd whenever the ring is empty. Returns how
// many came in order and whole before the first that did not.
uint64_t consume_numbered(SpscRing& ring, uint64_t count) {
  std::vector<std::byte> record;
  for (uint64_t index = 0; index < count;) {
    if (ring.pop(record)) {
      if (record != numbered_record(index)) return index;
      ++index;
    } else if (ring.prepare_sleep()) {
      pollfd fd{ring.wake_fd(), POLLIN, 0};
      if (::poll(&fd, 1, kPollTimeoutMs) != 1) return index;
      ring.finish_sleep();
    }
  }
  return count;
}

void produce_numbered(SpscRing& ring, uint64_t count) {
  for (uint64_t index = 0; index < count; ++index) {
    const auto record = numbered_record(index);
    while (!ring.push(record)) std::this_thread::yield();
    // Gaps of many lengths, so that the consumer falls asleep at every point of a push.
    if (index % 7 == 0) {
      for (uint64_t spin = 0; spin < index % 400; ++spin) asm volatile("" ::: "memory");
    }
  }
}

TEST_F(SpscRingTest, RecordsComeOutInOrderAndWhole) {
  SpscRing producer = attach();
  SpscRing consumer = attach();
  std::vector<std::byte> record;
  EXPECT_FALSE(consumer.pop(record));
  EXPECT_TRUE(consumer.empty());
  for (size_t length : {0, 1, 7, 8, 9, 100}) EXPECT_TRUE(producer.push(record_of(length, length)));
  EXPECT_FALSE(consumer.empty());
  for (size_t length : {0, 1, 7, 8, 9, 100}) {
    ASSERT_TRUE(consumer.pop(record));
    EXPECT_EQ(record, record_of(length, length));
  }
  EXPECT_TRUE(consumer.empty());
}

TEST_F(SpscRingTest, AFullRingRefusesAndTakesAgainAfterAPop) {
  SpscRing producer = attach();
  SpscRing consumer = attach();
  const auto record = record_of(100, 1);  // 104 bytes with its length
  size_t num_pushed = 0;
  while (producer.push(record)) ++num_pushed;
  EXPECT_EQ(num_pushed, kCapacityBytes / 104);
  std::vector<std::byte> out;
  ASSERT_TRUE(consumer.pop(out));
  EXPECT_TRUE(producer.push(record));
  EXPECT_FALSE(producer.push(record));
}

TEST_F(SpscRingTest, TheLargestRecordFitsAndALargerOneIsAProgrammerError) {
  SpscRing producer = attach();
  SpscRing consumer = attach();
  const auto record = record_of(producer.max_record_bytes(), 3);
  EXPECT_TRUE(producer.push(record));
  EXPECT_TRUE(producer.push(record));
  EXPECT_FALSE(producer.push(record_of(0, 0)));
  std::vector<std::byte> out;
  ASSERT_TRUE(consumer.pop(out));
  EXPECT_EQ(out, record);
  EXPECT_DEATH((void)producer.push(record_of(producer.max_record_bytes() + 1, 0)), "max_record");
}

TEST_F(SpscRingTest, RandomTrafficAgreesWithAQueueThroughManyWraps) {
  SpscRing producer = attach();
  SpscRing consumer = attach();
  std::deque<std::vector<std::byte>> expected;
  std::mt19937 random(7);
  std::vector<std::byte> out;
  for (uint64_t step = 0; step < 50'000; ++step) {
    if (random() % 2 == 0) {
      auto record = record_of(random() % 700, step);
      if (producer.push(record)) expected.push_back(std::move(record));
    } else {
      ASSERT_EQ(consumer.pop(out), !expected.empty());
      if (expected.empty()) continue;
      ASSERT_EQ(out, expected.front());
      expected.pop_front();
    }
  }
}

TEST_F(SpscRingTest, AttachRefusesWhatIsNoRing) {
  EXPECT_EQ(SpscRing::attach(memory_->data(), 300, event_->fd()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(SpscRing::attach(memory_->data(), memory_->size() - 1, event_->fd()).status().code(),
            StatusCode::kFailedPrecondition);
  overwrite<uint64_t>(0, 0);
  EXPECT_EQ(SpscRing::attach(memory_->data(), memory_->size(), event_->fd()).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(SpscRingTest, APushWakesOnlyASleeper) {
  SpscRing producer = attach();
  SpscRing consumer = attach();
  ASSERT_TRUE(producer.push(record_of(8, 0)));
  EXPECT_FALSE(readable(0));
  EXPECT_FALSE(consumer.prepare_sleep());
  std::vector<std::byte> out;
  ASSERT_TRUE(consumer.pop(out));
  ASSERT_TRUE(consumer.prepare_sleep());
  ASSERT_TRUE(producer.push(record_of(8, 1)));
  EXPECT_TRUE(readable(kPollTimeoutMs));
  consumer.finish_sleep();
  EXPECT_FALSE(readable(0));
  ASSERT_TRUE(producer.push(record_of(8, 2)));
  EXPECT_FALSE(readable(0));
}

TEST_F(SpscRingTest, ATailBeyondTheCapacityIsFoundByTheConsumer) {
  SpscRing consumer = attach();
  overwrite<uint64_t>(kTailOffset, kCapacityBytes + 8);
  std::vector<std::byte> out;
  EXPECT_FALSE(consumer.pop(out));
  EXPECT_TRUE(consumer.corrupt());
  EXPECT_TRUE(consumer.empty());
  EXPECT_TRUE(consumer.prepare_sleep());
}

TEST_F(SpscRingTest, ALengthBeyondTheTailIsFoundByTheConsumer) {
  for (const uint32_t length : {101u, 0x7fff'ffffu, 0xffff'ffffu}) {
    SpscRing::format(memory_->data(), kCapacityBytes);
    SpscRing producer = attach();
    SpscRing consumer = attach();
    ASSERT_TRUE(producer.push(record_of(100, 1)));
    overwrite<uint32_t>(kDataOffset, length);
    std::vector<std::byte> out;
    EXPECT_FALSE(consumer.pop(out)) << length;
    EXPECT_TRUE(consumer.corrupt());
  }
}

TEST_F(SpscRingTest, AHeadBeyondTheTailIsFoundByTheProducer) {
  SpscRing producer = attach();
  overwrite<uint64_t>(kHeadOffset, 8);
  EXPECT_FALSE(producer.push(record_of(8, 0)));
  EXPECT_TRUE(producer.corrupt());
}

TEST_F(SpscRingTest, TwoThreadsLoseNothingAndNeverMissAWakeUp) {
  constexpr uint64_t kCount = 200'000;
  SpscRing producer = attach();
  SpscRing consumer = attach();
  std::thread thread([&] { produce_numbered(producer, kCount); });
  EXPECT_EQ(consume_numbered(consumer, kCount), kCount);
  thread.join();
}

TEST_F(SpscRingTest, OneRecordAtATimeNeverMissesAWakeUp) {
  // Ping-pong over two rings: every round trip ends in a sleep on one side or the other.
  constexpr uint64_t kCount = 20'000;
  auto memory = MappedMemory::create("ring-test-back", SpscRing::memory_bytes(kCapacityBytes));
  auto event = EventFd::create();
  ASSERT_TRUE(memory.ok() && event.ok());
  SpscRing::format(memory.value().data(), kCapacityBytes);
  auto attach_back = [&] {
    return SpscRing::attach(memory.value().data(), memory.value().size(), event.value().fd());
  };
  SpscRing there_in = attach();
  SpscRing there_out = attach();
  SpscRing back_in = std::move(attach_back()).value();
  SpscRing back_out = std::move(attach_back()).value();
  auto await = [](SpscRing& ring, std::vector<std::byte>& record) {
    while (!ring.pop(record)) {
      if (!ring.prepare_sleep()) continue;
      pollfd fd{ring.wake_fd(), POLLIN, 0};
      if (::poll(&fd, 1, kPollTimeoutMs) != 1) return false;
      ring.finish_sleep();
    }
    return true;
  };
  uint64_t num_echoed = 0;
  std::thread thread([&] {
    std::vector<std::byte> record;
    while (num_echoed < kCount && await(there_out, record) && back_in.push(record)) ++num_echoed;
  });
  std::vector<std::byte> record;
  uint64_t num_back = 0;
  for (; num_back < kCount; ++num_back) {
    ASSERT_TRUE(there_in.push(numbered_record(num_back)));
    if (!await(back_out, record) || record != numbered_record(num_back)) break;
  }
  thread.join();
  EXPECT_EQ(num_back, kCount);
  EXPECT_EQ(num_echoed, kCount);
}

TEST_F(SpscRingTest, TwoProcessesLoseNothing) {
  constexpr uint64_t kCount = 100'000;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    SpscRing producer = attach();
    produce_numbered(producer, kCount);
    ::_exit(0);
  }
  SpscRing consumer = attach();
  EXPECT_EQ(consume_numbered(consumer, kCount), kCount);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(SpscRingTest, AKilledProducerLeavesOnlyWholeRecords) {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    SpscRing::format(memory_->data(), kCapacityBytes);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it would outlive a test that fails before the kill
      SpscRing producer = attach();
      produce_numbered(producer, UINT64_MAX);
      ::_exit(0);
    }
    SpscRing consumer = attach();
    std::vector<std::byte> record;
    uint64_t index = 0;
    // The child is killed at some record and the rest of the ring is read afterwards. Each 45
    // records fill the ring, and on a busy machine wait for the other side to have a processor.
    const uint64_t kill_at = 100 + random() % 1'000;
    bool killed = false;
    int status = 0;
    while (!killed || !consumer.empty()) {
      if (consumer.pop(record)) {
        ASSERT_EQ(record, numbered_record(index));
        ++index;
      } else {
        std::this_thread::yield();  // the producer may have no other processor
      }
      ASSERT_FALSE(consumer.corrupt());
      if (!killed && index >= kill_at) {
        ::kill(child, SIGKILL);
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        killed = true;
      }
    }
    EXPECT_GE(index, kill_at);
  }
}

}  // namespace
}  // namespace crossdock
