// The thread and its queues, over the loopback transport and over a transport that is always full.
#include "crossdock/transfer/transfer_thread.h"

#include <poll.h>
#include <time.h>

#include <set>

#include "crossdock/sys/shared_memory.h"
#include "crossdock/transfer/loopback.h"
#include "pair.h"

namespace crossdock {
namespace {

constexpr PeerId kPeer = 1;
constexpr int kPollTimeoutMs = 30'000;

// Sleeps on the event descriptor until `condition` holds of all events so far.
bool sleep_until(TransferThread& thread, std::vector<TransferEvent>& events,
                 const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    pollfd fd{thread.event_fd(), POLLIN, 0};
    if (::poll(&fd, 1, kPollTimeoutMs) != 1) return false;
    thread.drain(events);
  }
  return condition();
}

template <typename Event>
size_t count(const std::vector<TransferEvent>& events) {
  return static_cast<size_t>(std::count_if(events.begin(), events.end(), [](const auto& event) {
    return std::holds_alternative<Event>(event);
  }));
}

class ThreadPairTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const TransportConfig config = test_config(GetParam(), 4u << 20);
    if (GetParam() == "loopback") {
      auto [first, second] = create_loopback_pair(config, 1, 2);
      a_ = std::make_unique<TransferThread>(std::move(first));
      b_ = std::make_unique<TransferThread>(std::move(second));
    } else {
      for (auto [thread, epoch] : {std::pair(&a_, 1), std::pair(&b_, 2)}) {
        auto transport = create_ucx_transport(config, random_bits() + epoch);
        ASSERT_TRUE(transport.ok()) << transport.status().to_string();
        *thread = std::make_unique<TransferThread>(std::move(transport).value());
      }
    }
    a_->submit(Connect{kPeer, 7, b_->descriptor()});
    b_->submit(Connect{kPeer, 7, a_->descriptor()});
    ASSERT_TRUE(sleep_until(*a_, a_events_, [&] { return count<PeerReady>(a_events_) == 1; }));
    ASSERT_TRUE(sleep_until(*b_, b_events_, [&] { return count<PeerReady>(b_events_) == 1; }));
  }
  std::unique_ptr<TransferThread> a_;
  std::unique_ptr<TransferThread> b_;
  std::vector<TransferEvent> a_events_;
  std::vector<TransferEvent> b_events_;
};

TEST_P(ThreadPairTest, PingPongNeverMissesAWakeUp) {
  for (uint64_t round = 1; round <= 500; ++round) {
    a_->submit(WriteSpans{2 * round, kPeer, {{0, 0, 8192}}});
    a_->submit(Fence{2 * round + 1, kPeer});
    ASSERT_TRUE(
        sleep_until(*a_, a_events_, [&] { return count<OperationDone>(a_events_) == 2 * round; }));
    a_->submit(Notify{kPeer, bytes_of("ping")});
    ASSERT_TRUE(
        sleep_until(*b_, b_events_, [&] { return count<MessageArrived>(b_events_) == round; }));
    b_->submit(Notify{kPeer, bytes_of("pong")});
    ASSERT_TRUE(
        sleep_until(*a_, a_events_, [&] { return count<MessageArrived>(a_events_) == round; }));
  }
}

TEST_P(ThreadPairTest, ABurstIsTakenWithoutWaiting) {
  constexpr uint64_t kCount = 20'000;  // more than the transport's queue holds
  for (uint64_t i = 0; i < kCount; ++i)
    a_->submit(WriteSpans{i, kPeer, {{i % 4096, i % 4096, 64}}});
  EXPECT_TRUE(
      sleep_until(*a_, a_events_, [&] { return count<OperationDone>(a_events_) == kCount; }));
  for (const TransferEvent& event : a_events_) {
    if (const auto* done = std::get_if<OperationDone>(&event)) {
      ASSERT_TRUE(done->status.ok()) << done->status.to_string();
    }
  }
}

TEST_P(ThreadPairTest, RefusedOperationsEndInEvents) {
  a_->submit(WriteSpans{1, kPeer, {{0, 4u << 20, 1}}});
  a_->submit(ReadSpans{2, 99, {{0, 0, 1}}});
  a_->submit(Fence{3, 99});
  a_->submit(Connect{50, 8, a_->descriptor()});
  a_->submit(Disconnect{98});
  ASSERT_TRUE(sleep_until(*a_, a_events_, [&] { return count<PeerClosed>(a_events_) == 1; }));
  std::vector<std::pair<OperationId, StatusCode>> done;
  for (const TransferEvent& event : a_events_) {
    if (const auto* operation = std::get_if<OperationDone>(&event)) {
      done.emplace_back(operation->operation, operation->status.code());
    }
  }
  EXPECT_EQ(done,
            (std::vector<std::pair<OperationId, StatusCode>>{{1, StatusCode::kInvalidArgument},
                                                             {2, StatusCode::kNotFound},
                                                             {3, StatusCode::kNotFound}}));
  EXPECT_EQ(count<PeerBroken>(a_events_), 1u);
}

// A loop that never sleeps takes events before the signal that tells of them. The signal must not
// outlast its next look: the loop would not sleep any more.
TEST_P(ThreadPairTest, ALookLeavesNoSignalOfWhatWasTaken) {
  pollfd fd{a_->event_fd(), POLLIN, 0};
  const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
  for (uint64_t round = 1; round <= 200; ++round) {
    a_->submit(Fence{round, kPeer});
    while (count<OperationDone>(a_events_) < round) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      a_->drain(a_events_);
    }
    if (::poll(&fd, 1, 1) == 0) continue;
    EXPECT_FALSE(a_->drain(a_events_));
    ASSERT_EQ(::poll(&fd, 1, 0), 0) << round;
  }
}

TEST_P(ThreadPairTest, AnIdleThreadSleeps) {
  // Processor time, not wall time: whatever else the machine does, sleeping threads use none.
  auto cpu_ns = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000ll + time.tv_nsec;
  };
  // What is left of the handshake may take any time on a busy machine, but it ends.
  const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
  pollfd fd{a_->event_fd(), POLLIN, 0};
  long long used_ns = 0;
  do {
    const auto before = cpu_ns();
    EXPECT_EQ(::poll(&fd, 1, 1'000), 0);
    used_ns = cpu_ns() - before;
  } while (used_ns >= 20'000'000 && std::chrono::steady_clock::now() < deadline);
  EXPECT_LT(used_ns, 20'000'000);  // 2 % of a core for two threads
}

INSTANTIATE_TEST_SUITE_P(Transports, ThreadPairTest, ::testing::Values("loopback", "shm", "tcp"),
                         [](const auto& param) { return param.param; });

// Takes Connect and Disconnect, and never has room for anything else.
class FullTransport : public Transport {
 public:
  std::span<std::byte> segment() override { return {}; }
  const EndpointDescriptor& descriptor() const override { return descriptor_; }
  Status post(Operation operation) override {
    if (const auto* disconnect = std::get_if<Disconnect>(&operation)) {
      closed_.push_back(disconnect->peer);
      return {};
    }
    return {StatusCode::kResourceExhausted, "full"};
  }
  bool poll(std::vector<TransferEvent>& events) override {
    for (const PeerId peer : closed_) events.emplace_back(PeerClosed{peer, true});
    const bool any = !closed_.empty();
    closed_.clear();
    return any;
  }
  int wake_fd() const override { return event_.fd(); }
  bool arm() override { return true; }

 private:
  EndpointDescriptor descriptor_;
  EventFd event_ = std::move(EventFd::create()).value();
  std::vector<PeerId> closed_;
};

TEST(TransferThread, DisconnectOvertakesWhatWaitsForRoomAndCancelsIt) {
  TransferThread thread(std::make_unique<FullTransport>());
  std::vector<TransferEvent> events;
  thread.submit(WriteSpans{1, kPeer, {{0, 0, 1}}});
  thread.submit(Fence{2, kPeer});
  thread.submit(Disconnect{kPeer});
  ASSERT_TRUE(sleep_until(thread, events, [&] { return count<PeerClosed>(events) == 1; }));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(std::get<OperationDone>(events[0]).status.code(), StatusCode::kCancelled);
  EXPECT_EQ(std::get<OperationDone>(events[1]).operation, 2u);
}

TEST(TransferThread, AConnectThatFindsNoRoomEndsInPeerBroken) {
  TransferThread thread(std::make_unique<FullTransport>());
  std::vector<TransferEvent> events;
  thread.submit(Connect{kPeer, 1, {}});
  ASSERT_TRUE(sleep_until(thread, events, [&] { return count<PeerBroken>(events) == 1; }));
}

}  // namespace
}  // namespace crossdock
