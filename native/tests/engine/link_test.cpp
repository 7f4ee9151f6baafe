#include "crossdock/engine/link.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace crossdock {
namespace {

constexpr int kPollTimeoutMs = 60'000;  // only a hang lasts as long

FrontLink make_front() {
  auto front = FrontLink::create(1 << 16);
  EXPECT_TRUE(front.ok()) << front.status().to_string();
  return std::move(front).value();
}

EngineLink attach(const FrontLink& front) {
  auto engine = EngineLink::attach(front.memory_fd(), front.to_engine_fd(), front.to_front_fd());
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return std::move(engine).value();
}

TEST(Link, CarriesBothWaysAcrossThreads) {
  constexpr uint64_t kCount = 20000;
  FrontLink front = make_front();
  EngineLink engine = attach(front);
  std::thread echo([&engine] {
    uint64_t seen = 0;
    while (seen < kCount) {
      auto command = engine.receive();
      ASSERT_TRUE(command.ok());
      if (command.value().has_value()) {
        const uint64_t id = std::get<link::Cancel>(*command.value()).sequence_id;
        ASSERT_EQ(id, seen++);
        engine.send(link::Ended{.sequence_id = id, .message = std::string(id % 100, 'x')});
        continue;
      }
      engine.flush();
      if (engine.prepare_sleep()) {
        pollfd wait{.fd = engine.wake_fd(), .events = POLLIN};
        ASSERT_GT(poll(&wait, 1, kPollTimeoutMs), 0) << "no wake-up for a command";
      }
      engine.finish_sleep();
    }
    while (!engine.flush()) std::this_thread::yield();
  });
  uint64_t sent = 0;
  uint64_t received = 0;
  while (received < kCount) {
    while (sent < kCount && sent < received + 500 &&
           front.send(link::Cancel{.sequence_id = sent}).ok()) {
      ++sent;
    }
    auto events = front.receive();
    ASSERT_TRUE(events.ok());
    for (const auto& event : events.value()) {
      ASSERT_EQ(std::get<link::Ended>(event).sequence_id, received++);
    }
    if (received == kCount || sent < std::min(kCount, received + 500)) continue;
    pollfd wait{.fd = front.to_front_fd(), .events = POLLIN};
    ASSERT_GT(poll(&wait, 1, kPollTimeoutMs), 0) << "no wake-up for an event";
  }
  echo.join();
}

TEST(Link, AFullRingIsAStatusAndAnImpossibleRecordAnError) {
  FrontLink front = make_front();
  const EngineLink engine = attach(front);
  link::Generate big;
  big.task.prompt.resize(4000);
  Status status;
  int num_sent = 0;
  while ((status = front.send(big)).ok() && num_sent < 100) ++num_sent;
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_GE(num_sent, 2);
  big.task.prompt.resize(1 << 16);
  EXPECT_EQ(front.send(big).code(), StatusCode::kInvalidArgument);
}

TEST(Link, EventsWaitForRoomInOrder) {
  FrontLink front = make_front();
  EngineLink engine = attach(front);
  for (uint64_t i = 0; i < 3000; ++i) {
    engine.send(link::Ended{.sequence_id = i, .message = std::string(64, 'y')});
  }
  EXPECT_FALSE(engine.flush());
  uint64_t next = 0;
  while (next < 3000) {
    auto events = front.receive();
    ASSERT_TRUE(events.ok());
    ASSERT_FALSE(events.value().empty());
    for (const auto& event : events.value()) {
      ASSERT_EQ(std::get<link::Ended>(event).sequence_id, next++);
    }
    engine.flush();
  }
  EXPECT_TRUE(engine.flush());
}

TEST(Link, ForeignMemoryIsRefused) {
  auto memory = MappedMemory::create("other", 1 << 16);
  auto wake = EventFd::create();
  ASSERT_TRUE(memory.ok() && wake.ok());
  const auto engine = EngineLink::attach(memory.value().fd(), wake.value().fd(), wake.value().fd());
  EXPECT_EQ(engine.status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace crossdock
