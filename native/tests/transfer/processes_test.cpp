// UCX transports in two processes: what happens when one of them dies, stops or returns.
#include <csignal>

#include "pair.h"
#include "peer_process.h"

namespace crossdock {
namespace {

const uint64_t kSegmentBytes = 64 * kTestMiB;
constexpr PeerId kPeer = 1;

std::string text(const char* verb, uint64_t number, const char* rest) {
  return std::string(verb) + " " + std::to_string(number) + " " + rest;
}

class ProcessesTest : public ::testing::TestWithParam<std::string> {
 protected:
  void open_here() { here_.open(test_config(GetParam(), kSegmentBytes), random_bits()); }
  void start_there() {
    there_ = std::make_unique<PeerProcess>(GetParam(), kSegmentBytes, random_bits());
  }
  bool until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      here_.poll();
      if (there_) there_->poll();
    }
    return true;
  }
  void poll_for(std::chrono::milliseconds duration) {
    const auto end = std::chrono::steady_clock::now() + duration;
    while (std::chrono::steady_clock::now() < end) here_.poll();
  }
  void connect(PeerId peer) {
    const uint64_t incarnation = random_bits();
    there_->connect(peer, incarnation, here_.transport->descriptor());
    ASSERT_TRUE(here_.transport->post(Connect{peer, incarnation, there_->descriptor()}).ok());
    ASSERT_TRUE(until([&] {
      return here_.of_peer<PeerReady>(peer) != nullptr &&
             there_->said(text("ready", peer, GetParam().c_str()));
    }));
  }
  void open_and_connect() {
    ASSERT_NO_FATAL_FAILURE(open_here());
    ASSERT_NO_FATAL_FAILURE(start_there());
    ASSERT_NO_FATAL_FAILURE(connect(kPeer));
  }
  const PeerClosed* closed_for_good(PeerId peer) const {
    return here_.find<PeerClosed>(
        [&](const auto& closed) { return closed.peer == peer && closed.writes_stopped; });
  }
  Side here_;
  std::unique_ptr<PeerProcess> there_;
};

TEST_P(ProcessesTest, WritesAndMessagesCrossBothWays) {
  open_and_connect();
  fill(here_.transport->segment().first(kSegmentBytes), 21);
  const uint64_t ours = checksum_of(here_.transport->segment());
  ASSERT_TRUE(here_.transport->post(WriteSpans{1, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  ASSERT_TRUE(here_.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(until([&] { return here_.done(2) != nullptr; }));
  ASSERT_TRUE(here_.done(2)->status.ok()) << here_.done(2)->status.to_string();
  there_->checksum();
  EXPECT_TRUE(until([&] { return there_->said("checksum " + std::to_string(ours)); }));

  there_->fill(22);
  there_->write(kPeer, 5, {0, 0, kSegmentBytes});
  there_->fence(kPeer, 6);
  ASSERT_TRUE(until([&] { return there_->said("done 6 OK"); }));
  there_->checksum();
  const uint64_t theirs = checksum_of(here_.transport->segment());
  EXPECT_NE(theirs, ours);
  EXPECT_TRUE(until([&] { return there_->said("checksum " + std::to_string(theirs)); }));

  there_->notify(kPeer, "hello");
  ASSERT_TRUE(here_.transport->post(Notify{kPeer, bytes_of("world")}).ok());
  EXPECT_TRUE(until([&] {
    return here_.count<MessageArrived>() == 1 && there_->said(text("message", kPeer, "world"));
  }));
  EXPECT_EQ(here_.messages(), std::vector<std::string>{"hello"});
}

TEST_P(ProcessesTest, AKilledWriterIsReportedGoneAndWritesNoMore) {
  open_and_connect();
  there_->fill(1);
  there_->stream(kPeer);
  ASSERT_TRUE(until([&] { return there_->said("streamed"); }));
  there_->kill_and_reap();
  ASSERT_TRUE(until([&] { return here_.of_peer<PeerBroken>(kPeer) != nullptr; }));
  EXPECT_TRUE(here_.of_peer<PeerBroken>(kPeer)->process_gone);
  ASSERT_TRUE(here_.transport->post(Disconnect{kPeer}).ok());
  ASSERT_TRUE(until([&] { return here_.of_peer<PeerClosed>(kPeer) != nullptr; }));
  EXPECT_TRUE(here_.of_peer<PeerClosed>(kPeer)->writes_stopped);
  const auto segment = here_.transport->segment();
  clear(segment);
  poll_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(all_zero(here_.transport->segment()));
}

TEST_P(ProcessesTest, AKilledTargetEndsTheOperationsTowardsIt) {
  open_and_connect();
  // Enough that the kill comes in the middle; a put over shared memory cannot fail, so there the
  // queue is cut off.
  for (OperationId operation = 0; operation < 200; ++operation) {
    ASSERT_TRUE(here_.transport->post(WriteSpans{operation, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  }
  ASSERT_TRUE(here_.transport->post(Fence{200, kPeer}).ok());
  ASSERT_TRUE(until([&] { return here_.done(0) != nullptr; }));
  there_->kill_and_reap();
  ASSERT_TRUE(until([&] { return here_.of_peer<PeerBroken>(kPeer) != nullptr; }));
  EXPECT_TRUE(here_.of_peer<PeerBroken>(kPeer)->process_gone);
  ASSERT_TRUE(until([&] { return here_.count<OperationDone>() == 201; }));
  EXPECT_EQ(here_.done(200)->status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(here_.transport->post(Fence{201, kPeer}).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(here_.transport->post(Disconnect{kPeer}).ok());
  EXPECT_TRUE(until([&] { return closed_for_good(kPeer) != nullptr; }));
}

TEST_P(ProcessesTest, ARestartedPeerHasANewEpochAndWorks) {
  open_and_connect();
  for (PeerId peer = kPeer; peer < kPeer + 3; ++peer) {
    there_->kill_and_reap();
    ASSERT_TRUE(until([&] { return here_.of_peer<PeerBroken>(peer) != nullptr; }));
    ASSERT_TRUE(here_.transport->post(Disconnect{peer}).ok());
    ASSERT_TRUE(until([&] { return closed_for_good(peer) != nullptr; }));
    start_there();
    ASSERT_NO_FATAL_FAILURE(connect(peer + 1));
    there_->notify(peer + 1, "again");
    const size_t expected = peer - kPeer + 1;
    ASSERT_TRUE(until([&] { return here_.count<MessageArrived>() == expected; }));
  }
}

TEST_P(ProcessesTest, AProcessThatIsGoneBeforeConnectIsNotWaitedFor) {
  open_here();
  start_there();
  const EndpointDescriptor descriptor = there_->descriptor();
  there_->kill_and_reap();
  EXPECT_EQ(here_.transport->post(Connect{kPeer, 1, descriptor}).code(), StatusCode::kUnavailable);
  EXPECT_EQ(here_.transport->post(Disconnect{kPeer}).code(), StatusCode::kNotFound);
}

TEST_P(ProcessesTest, AStoppedPeerHoldsUpNothingButItself) {
  open_and_connect();
  PeerProcess other(GetParam(), kSegmentBytes, random_bits());
  constexpr PeerId kOther = 50;
  other.connect(kOther, 77, here_.transport->descriptor());
  ASSERT_TRUE(here_.transport->post(Connect{kOther, 77, other.descriptor()}).ok());
  ASSERT_TRUE(until([&] { return here_.of_peer<PeerReady>(kOther) != nullptr; }));
  there_->signal(SIGSTOP);
  for (OperationId operation = 0; operation < 4; ++operation) {
    ASSERT_TRUE(here_.transport->post(WriteSpans{operation, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  }
  ASSERT_TRUE(here_.transport->post(Fence{4, kPeer}).ok());
  // The other peer is served meanwhile.
  ASSERT_TRUE(here_.transport->post(WriteSpans{10, kOther, {{0, 0, kTestMiB}}}).ok());
  ASSERT_TRUE(here_.transport->post(Fence{11, kOther}).ok());
  ASSERT_TRUE(until([&] { return here_.done(11) != nullptr; }));
  EXPECT_TRUE(here_.done(11)->status.ok());
  EXPECT_EQ(here_.of_peer<PeerBroken>(kPeer), nullptr);
  if (GetParam() == "tcp") {
    EXPECT_EQ(here_.done(4), nullptr);  // nothing arrives at a stopped process
  }
  ASSERT_TRUE(here_.transport->post(Disconnect{kPeer}).ok());
  ASSERT_TRUE(until([&] { return here_.of_peer<PeerClosed>(kPeer) != nullptr; }));
  ASSERT_NE(here_.done(4), nullptr);
  if (GetParam() == "tcp") {
    EXPECT_EQ(here_.done(4)->status.code(), StatusCode::kCancelled);
  }
  if (GetParam() != "shm") {
    EXPECT_TRUE(here_.of_peer<PeerClosed>(kPeer)->writes_stopped);
  } else {
    // A stopped writer may resume its copy, so nothing is proven until it has closed too.
    EXPECT_FALSE(here_.of_peer<PeerClosed>(kPeer)->writes_stopped);
    EXPECT_EQ(closed_for_good(kPeer), nullptr);
  }
  there_->signal(SIGCONT);
  ASSERT_TRUE(until([&] { return there_->said(text("broken", kPeer, "alive")); }));
  there_->disconnect(kPeer);
  EXPECT_TRUE(until([&] { return closed_for_good(kPeer) != nullptr; }));
}

TEST_P(ProcessesTest, AHandshakeWithAStoppedPeerEnds) {
  TransportConfig config = test_config(GetParam(), kSegmentBytes);
  config.handshake_timeout_ms = 300;
  here_.open(config, random_bits());
  start_there();
  there_->signal(SIGSTOP);
  ASSERT_TRUE(here_.transport->post(Connect{kPeer, 1, there_->descriptor()}).ok());
  ASSERT_TRUE(until([&] { return here_.of_peer<PeerBroken>(kPeer) != nullptr; }));
  EXPECT_EQ(here_.of_peer<PeerBroken>(kPeer)->status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(here_.of_peer<PeerBroken>(kPeer)->process_gone);
  ASSERT_TRUE(here_.transport->post(Disconnect{kPeer}).ok());
  EXPECT_TRUE(until([&] { return closed_for_good(kPeer) != nullptr; }));
}

// The claim on which quarantine over TCP rests: once PeerClosed says that writes have stopped,
// nothing more lands, though the writer may not know yet and may even be told that all went well.
TEST_P(ProcessesTest, AfterPeerClosedNoWriteLands) {
  if (GetParam() == "shm") {
    // Over shared memory the same holds once the writer has closed as well.
    open_and_connect();
    there_->fill(1);
    there_->stream(kPeer);
    ASSERT_TRUE(until([&] { return there_->said("streamed"); }));
    ASSERT_TRUE(here_.transport->post(Disconnect{kPeer}).ok());
    ASSERT_TRUE(until([&] { return there_->said(text("broken", kPeer, "alive")); }));
    there_->disconnect(kPeer);
    ASSERT_TRUE(until([&] { return closed_for_good(kPeer) != nullptr; }));
    const auto segment = here_.transport->segment();
    clear(segment);
    poll_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(all_zero(here_.transport->segment()));
    return;
  }
  open_and_connect();
  there_->fill(1);
  const auto segment = here_.transport->segment();
  size_t num_cut_off = 0;
  for (PeerId peer = kPeer; peer < kPeer + 20; ++peer) {
    clear(segment);
    there_->write(peer, peer, {0, 0, kSegmentBytes});
    there_->fence(peer, 1'000 + peer);
    // At another point of the write each time.
    const size_t probe = (kSegmentBytes - 4096) / 24 * (peer - kPeer);
    ASSERT_TRUE(until([&] { return !all_zero(segment.subspan(probe, 4096)); }));
    ASSERT_TRUE(here_.transport->post(Disconnect{peer}).ok());
    ASSERT_TRUE(until([&] { return here_.of_peer<PeerClosed>(peer) != nullptr; }));
    ASSERT_TRUE(here_.of_peer<PeerClosed>(peer)->writes_stopped);
    num_cut_off +=
        segment[kSegmentBytes - 1] == std::byte{0} && segment[kSegmentBytes - 2] == std::byte{0};
    clear(segment);
    ASSERT_TRUE(until([&] { return there_->said(text("broken", peer, "alive")); }));
    poll_for(std::chrono::milliseconds(20));
    ASSERT_TRUE(all_zero(segment)) << "round " << peer;
    there_->disconnect(peer);
    ASSERT_TRUE(until([&] { return there_->said(text("closed", peer, "yes")); }));
    ASSERT_NO_FATAL_FAILURE(connect(peer + 1));
  }
  // Some rounds must have met a write in the middle, or the test shows nothing.
  EXPECT_GE(num_cut_off, 5u);
}

TEST_P(ProcessesTest, MessagesOfAnOldIncarnationAreNotHeard) {
  open_and_connect();
  for (int i = 0; i < 200; ++i) there_->notify(kPeer, "old");
  ASSERT_TRUE(here_.transport->post(Disconnect{kPeer}).ok());
  const size_t heard_before = here_.count<MessageArrived>();
  ASSERT_TRUE(until([&] { return there_->said(text("broken", kPeer, "alive")); }));
  there_->notify(kPeer, "old");
  there_->disconnect(kPeer);
  ASSERT_NO_FATAL_FAILURE(connect(kPeer + 1));
  there_->notify(kPeer + 1, "new");
  ASSERT_TRUE(until([&] { return here_.count<MessageArrived>() > heard_before; }));
  EXPECT_EQ(here_.count<MessageArrived>(), heard_before + 1);
  EXPECT_EQ(here_.messages().back(), "new");
}

INSTANTIATE_TEST_SUITE_P(Transports, ProcessesTest, ::testing::ValuesIn(transports_to_test()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace crossdock

int main(int argc, char** argv) {
  const int code = crossdock::run_peer_process_if_asked(argc, argv);
  if (code >= 0) return code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
