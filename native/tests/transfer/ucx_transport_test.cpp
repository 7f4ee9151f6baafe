// Two UCX transports in one process, over shared memory and over TCP.
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include "pair.h"

namespace crossdock {
namespace {

const uint64_t kSegmentBytes = 32 * kTestMiB;
constexpr PeerId kPeer = 1;

class UcxTransportTest : public ::testing::TestWithParam<std::string> {
 protected:
  void open() {
    pair_.a.open(test_config(GetParam(), kSegmentBytes), random_bits());
    pair_.b.open(test_config(GetParam(), kSegmentBytes, 1), random_bits());
  }
  void open_and_connect() {
    ASSERT_NO_FATAL_FAILURE(open());
    ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer, random_bits()));
  }
  const OperationDone* finish(Side& side, OperationId operation) {
    EXPECT_TRUE(pair_.until([&] { return side.done(operation) != nullptr; })) << operation;
    return side.done(operation);
  }
  Pair pair_;
};

TEST_P(UcxTransportTest, BecomesReadyOverTheTransportThatWasAsked) {
  open_and_connect();
  for (const Side* side : {&pair_.a, &pair_.b}) {
    const auto* ready = side->of_peer<PeerReady>(kPeer);
    ASSERT_NE(ready, nullptr);
    EXPECT_EQ(name(ready->transport), GetParam());
    EXPECT_EQ(side->transport->descriptor().transports, GetParam());
  }
}

TEST_P(UcxTransportTest, ANewSegmentIsZero) {
  open();
  const auto segment = pair_.a.transport->segment();
  EXPECT_EQ(segment.size(), kSegmentBytes);
  EXPECT_TRUE(all_zero(segment));
}

TEST_P(UcxTransportTest, HugePagesAreTakenWhereThereAreAnyAndElseOrdinaryOnes) {
  TransportConfig config = test_config(GetParam(), kSegmentBytes);
  config.huge_pages = true;
  pair_.a.open(config, random_bits());
  pair_.b.open(config, random_bits());
  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer, random_bits()));
  fill(pair_.a.transport->segment(), 4);
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(finish(pair_.a, 2)->status.ok());
  const auto source = pair_.a.transport->segment();
  EXPECT_TRUE(std::equal(source.begin(), source.end(), pair_.b.transport->segment().begin()));
}

TEST_P(UcxTransportTest, AWriteLandsWhereItWasSentAndNowhereElse) {
  open_and_connect();
  fill(pair_.a.transport->segment(), 1);
  ASSERT_TRUE(
      pair_.a.transport->post(WriteSpans{1, kPeer, {{4096, kTestMiB, 20 * kTestMiB}, {0, 7, 5}}})
          .ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{2, kPeer}).ok());
  const auto* write = finish(pair_.a, 1);
  ASSERT_NE(write, nullptr);
  EXPECT_TRUE(write->status.ok()) << write->status.to_string();
  EXPECT_EQ(write->bytes, 20 * kTestMiB + 5);
  const auto* fence = finish(pair_.a, 2);
  ASSERT_NE(fence, nullptr);
  EXPECT_TRUE(fence->status.ok()) << fence->status.to_string();
  const auto source = pair_.a.transport->segment();
  const auto target = pair_.b.transport->segment();
  std::vector<std::byte> expected(kSegmentBytes);
  std::copy_n(source.begin() + 4096, 20 * kTestMiB, expected.begin() + kTestMiB);
  std::memcpy(&expected.at(7), source.data(), 5);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), target.begin()));
}

TEST_P(UcxTransportTest, AReadBringsTheBytesOfThePeer) {
  open_and_connect();
  fill(pair_.b.transport->segment(), 9);
  ASSERT_TRUE(pair_.a.transport->post(ReadSpans{1, kPeer, {{0, 8192, 9 * kTestMiB}}}).ok());
  const auto* read = finish(pair_.a, 1);
  ASSERT_NE(read, nullptr);
  EXPECT_TRUE(read->status.ok()) << read->status.to_string();
  EXPECT_EQ(read->bytes, 9 * kTestMiB);
  const auto target = pair_.a.transport->segment();
  EXPECT_TRUE(std::equal(target.begin(), target.begin() + 9 * kTestMiB,
                         pair_.b.transport->segment().begin() + 8192));
}

TEST_P(UcxTransportTest, AdjacentSpansAreMerged) {
  open_and_connect();
  std::vector<CopySpan> adjacent;
  for (uint64_t i = 0; i < 64; ++i) adjacent.push_back({i * 4096, 65536 + i * 4096, 4096});
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, adjacent}).ok());
  std::vector<CopySpan> apart;
  for (uint64_t i = 0; i < 64; ++i) apart.push_back({i * 4096, i * 8192, 4096});
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{2, kPeer, apart}).ok());
  EXPECT_EQ(finish(pair_.a, 1)->num_transfers, 1u);
  EXPECT_EQ(finish(pair_.a, 2)->num_transfers, 64u);
}

TEST_P(UcxTransportTest, AnEmptyWriteIsDone) {
  open_and_connect();
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 0, 0}}}).ok());
  const auto* done = finish(pair_.a, 1);
  EXPECT_TRUE(done->status.ok());
  EXPECT_EQ(done->num_transfers, 0u);
}

TEST_P(UcxTransportTest, SpansOutsideEitherSegmentAreRefusedByName) {
  open_and_connect();
  const std::vector<CopySpan> bad = {{kSegmentBytes, 0, 1},
                                     {0, kSegmentBytes, 1},
                                     {1, 0, kSegmentBytes},
                                     {0, 1, UINT64_MAX},
                                     {UINT64_MAX, 0, 2}};
  for (const CopySpan& span : bad) {
    for (const Operation& operation : {Operation(WriteSpans{1, kPeer, {{0, 0, 1}, span}}),
                                       Operation(ReadSpans{1, kPeer, {{0, 0, 1}, span}})}) {
      const Status status = pair_.a.transport->post(operation);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find("spans[1]"), std::string::npos) << status.message();
    }
  }
  EXPECT_EQ(pair_.a.count<OperationDone>(), 0u);
}

TEST_P(UcxTransportTest, UnknownPeersAndPeersThatAreNotReadyAreRefused) {
  open();
  EXPECT_EQ(pair_.a.transport->post(Fence{1, 77}).code(), StatusCode::kNotFound);
  EXPECT_EQ(pair_.a.transport->post(Disconnect{77}).code(), StatusCode::kNotFound);
  EXPECT_EQ(pair_.a.transport->post(Notify{77, {}}).code(), StatusCode::kNotFound);
  ASSERT_TRUE(pair_.connect_side(pair_.a, pair_.b, kPeer, 5).ok());
  EXPECT_EQ(pair_.a.transport->post(Fence{1, kPeer}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(pair_.connect_side(pair_.a, pair_.b, kPeer, 6).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(pair_.connect_side(pair_.a, pair_.b, 2, 5).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(pair_.connect_side(pair_.a, pair_.a, 3, 5).code(), StatusCode::kInvalidArgument);
}

TEST_P(UcxTransportTest, MessagesOfAllSizesArriveInOrderBothWays) {
  open_and_connect();
  std::vector<std::string> sent;
  for (size_t i = 0; i < 2'000; ++i) {
    sent.push_back(std::to_string(i) + std::string(i % 97 == 0 ? i * 40 : i % 300, 'x'));
  }
  for (const std::string& text : sent) {
    ASSERT_TRUE(pair_.a.transport->post(Notify{kPeer, bytes_of(text)}).ok());
    ASSERT_TRUE(pair_.b.transport->post(Notify{kPeer, bytes_of(text)}).ok());
  }
  EXPECT_TRUE(pair_.until([&] {
    return pair_.a.count<MessageArrived>() == sent.size() &&
           pair_.b.count<MessageArrived>() == sent.size();
  }));
  EXPECT_EQ(pair_.a.messages(), sent);
  EXPECT_EQ(pair_.b.messages(), sent);
}

TEST_P(UcxTransportTest, AMessageOverTheBoundIsRefused) {
  open_and_connect();
  EXPECT_EQ(pair_.a.transport->post(Notify{kPeer, std::vector<std::byte>((1u << 20) + 1)}).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(pair_.a.transport->post(Notify{kPeer, std::vector<std::byte>(1u << 20)}).ok());
  EXPECT_TRUE(pair_.until([&] { return pair_.b.count<MessageArrived>() == 1; }));
}

TEST_P(UcxTransportTest, AMessageAfterAFenceFindsTheBytesInPlace) {
  open_and_connect();
  for (uint64_t round = 1; round <= 20; ++round) {
    const auto source = pair_.a.transport->segment();
    fill(source.first(3 * kTestMiB), round);
    ASSERT_TRUE(
        pair_.a.transport->post(WriteSpans{2 * round, kPeer, {{0, 4096, 3 * kTestMiB}}}).ok());
    ASSERT_TRUE(pair_.a.transport->post(Fence{2 * round + 1, kPeer}).ok());
    ASSERT_TRUE(finish(pair_.a, 2 * round + 1)->status.ok());
    ASSERT_TRUE(pair_.a.transport->post(Notify{kPeer, bytes_of("in place")}).ok());
    ASSERT_TRUE(pair_.until([&] { return pair_.b.count<MessageArrived>() == round; }));
    const auto target = pair_.b.transport->segment();
    ASSERT_TRUE(std::equal(source.begin(), source.begin() + 3 * kTestMiB, target.begin() + 4096));
  }
}

TEST_P(UcxTransportTest, ManySmallWritesAreAllDone) {
  open_and_connect();
  constexpr uint64_t kCount = 3'000;
  fill(pair_.a.transport->segment().first(kCount * 16), 3);
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(pair_.a.transport->post(WriteSpans{i, kPeer, {{i * 16, i * 32, 16}}}).ok());
  }
  ASSERT_TRUE(pair_.a.transport->post(Fence{kCount, kPeer}).ok());
  ASSERT_TRUE(finish(pair_.a, kCount)->status.ok());
  ASSERT_TRUE(pair_.until([&] { return pair_.a.count<OperationDone>() == kCount + 1; }));
  const auto source = pair_.a.transport->segment();
  const auto target = pair_.b.transport->segment();
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(
        std::equal(source.begin() + i * 16, source.begin() + i * 16 + 16, target.begin() + i * 32));
  }
}

TEST_P(UcxTransportTest, AFullQueueIsAReturnedStatus) {
  open_and_connect();
  Status status;
  uint64_t num_posted = 0;
  while (status.ok() && num_posted < 1'000'000) {
    status = pair_.a.transport->post(WriteSpans{num_posted++, kPeer, {{0, 0, 8}}});
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(pair_.until([&] { return pair_.a.count<OperationDone>() == num_posted - 1; }));
  EXPECT_TRUE(pair_.a.transport->post(WriteSpans{num_posted, kPeer, {{0, 0, 8}}}).ok());
}

TEST_P(UcxTransportTest, BytesInFlightStayUnderTheBoundAndEverythingArrives) {
  TransportConfig config = test_config(GetParam(), kSegmentBytes);
  config.in_flight_bytes_max = 1;  // one piece at a time
  pair_.a.open(config, random_bits());
  pair_.b.open(config, random_bits());
  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer, random_bits()));
  fill(pair_.a.transport->segment(), 5);
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(finish(pair_.a, 2)->status.ok());
  const auto source = pair_.a.transport->segment();
  EXPECT_TRUE(std::equal(source.begin(), source.end(), pair_.b.transport->segment().begin()));
}

TEST_P(UcxTransportTest, DisconnectEndsOperationsAndTheOtherSideIsTold) {
  open_and_connect();
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Disconnect{kPeer}).ok());
  EXPECT_EQ(pair_.a.transport->post(Fence{3, kPeer}).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pair_.until([&] { return pair_.a.of_peer<PeerClosed>(kPeer) != nullptr; }));
  EXPECT_EQ(finish(pair_.a, 1)->status.code(), StatusCode::kCancelled);
  EXPECT_EQ(finish(pair_.a, 2)->status.code(), StatusCode::kCancelled);
  EXPECT_TRUE(pair_.until([&] { return pair_.b.of_peer<PeerBroken>(kPeer) != nullptr; }));
  EXPECT_FALSE(pair_.b.of_peer<PeerBroken>(kPeer)->process_gone);
  EXPECT_EQ(pair_.b.transport->post(Fence{4, kPeer}).code(), StatusCode::kUnavailable);
  // What of theirs may still land is known at once over TCP, over shared memory when they close.
  const bool at_once = pair_.a.of_peer<PeerClosed>(kPeer)->writes_stopped;
  EXPECT_EQ(at_once, GetParam() != "shm");
  ASSERT_TRUE(pair_.b.transport->post(Disconnect{kPeer}).ok());
  EXPECT_TRUE(pair_.until([&] {
    return pair_.a.find<PeerClosed>([](const auto& closed) { return closed.writes_stopped; }) !=
               nullptr &&
           pair_.b.find<PeerClosed>([](const auto& closed) { return closed.writes_stopped; }) !=
               nullptr;
  }));
  EXPECT_EQ(pair_.a.transport->post(Disconnect{kPeer}).code(), StatusCode::kNotFound);
}

TEST_P(UcxTransportTest, ANewIncarnationWorksAndForgetsTheOldOne) {
  open_and_connect();
  for (PeerId peer = kPeer; peer < kPeer + 5; ++peer) {
    Side& first = peer % 2 == 0 ? pair_.a : pair_.b;
    Side& second = peer % 2 == 0 ? pair_.b : pair_.a;
    ASSERT_TRUE(first.transport->post(Disconnect{peer}).ok());
    ASSERT_TRUE(pair_.until([&] { return second.of_peer<PeerBroken>(peer) != nullptr; }));
    ASSERT_TRUE(second.transport->post(Disconnect{peer}).ok());
    ASSERT_NO_FATAL_FAILURE(pair_.connect(peer + 1, random_bits()));
    fill(pair_.a.transport->segment().first(kTestMiB), peer);
    ASSERT_TRUE(pair_.a.transport->post(WriteSpans{peer * 10, peer + 1, {{0, 0, kTestMiB}}}).ok());
    ASSERT_TRUE(pair_.a.transport->post(Fence{peer * 10 + 1, peer + 1}).ok());
    ASSERT_TRUE(finish(pair_.a, peer * 10 + 1)->status.ok());
    const auto source = pair_.a.transport->segment();
    ASSERT_TRUE(std::equal(source.begin(), source.begin() + kTestMiB,
                           pair_.b.transport->segment().begin()));
  }
}

TEST_P(UcxTransportTest, AOneSidedConnectThatIsGivenUpDoesNoHarmToTheNext) {
  open();
  for (Side* lonely : {&pair_.a, &pair_.b}) {
    Side& other = lonely == &pair_.a ? pair_.b : pair_.a;
    const PeerId given_up = lonely == &pair_.a ? 100 : 101;
    ASSERT_TRUE(pair_.connect_side(*lonely, other, given_up, 1'000 + given_up).ok());
    for (int i = 0; i < 2'000; ++i) {
      pair_.a.poll();
      pair_.b.poll();
    }
    ASSERT_TRUE(lonely->transport->post(Disconnect{given_up}).ok());
    ASSERT_TRUE(pair_.until([&] { return lonely->of_peer<PeerClosed>(given_up) != nullptr; }));
    EXPECT_TRUE(lonely->of_peer<PeerClosed>(given_up)->writes_stopped);
    ASSERT_NO_FATAL_FAILURE(pair_.connect(given_up + 10, random_bits()));
  }
}

TEST_P(UcxTransportTest, OneSideMayConnectLongAfterTheOther) {
  open();
  for (const bool a_first : {true, false}) {
    const PeerId peer = a_first ? 1 : 2;
    Side& first = a_first ? pair_.a : pair_.b;
    Side& second = a_first ? pair_.b : pair_.a;
    ASSERT_TRUE(pair_.connect_side(first, second, peer, peer).ok());
    for (int i = 0; i < 5'000; ++i) {
      pair_.a.poll();
      pair_.b.poll();
    }
    EXPECT_EQ(first.of_peer<PeerReady>(peer), nullptr);
    ASSERT_TRUE(pair_.connect_side(second, first, peer, peer).ok());
    EXPECT_TRUE(pair_.until([&] {
      return first.of_peer<PeerReady>(peer) != nullptr &&
             second.of_peer<PeerReady>(peer) != nullptr;
    }));
  }
}

TEST_P(UcxTransportTest, DestroyingOneSideBreaksTheOther) {
  open_and_connect();
  pair_.b.transport.reset();
  EXPECT_TRUE(pair_.until([&] { return pair_.a.of_peer<PeerBroken>(kPeer) != nullptr; }));
  ASSERT_TRUE(pair_.a.transport->post(Disconnect{kPeer}).ok());
  EXPECT_TRUE(pair_.until([&] {
    return pair_.a.find<PeerClosed>([](const auto& closed) { return closed.writes_stopped; }) !=
           nullptr;
  }));
}

TEST_P(UcxTransportTest, TheWakeUpDescriptorTellsOfEverything) {
  open_and_connect();
  auto sleep_until_poll_reports = [](Side& side, size_t num_events) {
    const auto deadline = std::chrono::steady_clock::now() + kTestWaitMax;
    while (side.events.size() < num_events && std::chrono::steady_clock::now() < deadline) {
      if (!side.transport->arm()) {
        side.poll();
        continue;
      }
      pollfd fd{side.transport->wake_fd(), POLLIN, 0};
      if (::poll(&fd, 1, 20'000) != 1) return false;
      side.poll();
    }
    return side.events.size() >= num_events;
  };
  // The two sides are driven by turns here: what A sends must wake B without A's help.
  for (int round = 0; round < 5; ++round) {
    const size_t before = pair_.b.events.size();
    ASSERT_TRUE(pair_.a.transport->post(Notify{kPeer, bytes_of("wake")}).ok());
    for (int i = 0; i < 100; ++i) pair_.a.poll();
    ASSERT_TRUE(sleep_until_poll_reports(pair_.b, before + 1)) << round;
  }
  const size_t before = pair_.b.events.size();
  pair_.a.transport.reset();
  EXPECT_TRUE(sleep_until_poll_reports(pair_.b, before + 1));
}

INSTANTIATE_TEST_SUITE_P(Transports, UcxTransportTest, ::testing::ValuesIn(transports_to_test()),
                         [](const auto& param) { return param.param; });

// What only a network card can do wrong. Runs where kRdmaVariable names devices.
class RdmaTest : public UcxTransportTest {
 protected:
  // "down" or "up": the wire between the two devices.
  static void set_link(const char* state) {
    const char* script = std::getenv("CROSSDOCK_TEST_LINK");
    ASSERT_NE(script, nullptr);
    ASSERT_EQ(std::system(("sh " + std::string(script) + " " + state).c_str()), 0);
  }
};

TEST_P(RdmaTest, TheKeyOfADeadRegistrationIsRefused) {
  open();
  Side dead;
  dead.open(test_config(GetParam(), kSegmentBytes, 1), random_bits());
  EndpointDescriptor remote = pair_.b.transport->descriptor();
  remote.remote_key = dead.transport->descriptor().remote_key;
  dead.transport.reset();
  ASSERT_TRUE(pair_.a.transport->post(Connect{kPeer, 3, remote}).ok());
  ASSERT_TRUE(pair_.connect_side(pair_.b, pair_.a, kPeer, 3).ok());
  ASSERT_TRUE(pair_.until([&] { return pair_.a.of_peer<PeerBroken>(kPeer) != nullptr; }));
  EXPECT_EQ(pair_.a.of_peer<PeerReady>(kPeer), nullptr);
  const Status& status = pair_.a.of_peer<PeerBroken>(kPeer)->status;
  EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  EXPECT_EQ(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 0, 8}}}).code(),
            StatusCode::kUnavailable);
  EXPECT_TRUE(all_zero(pair_.b.transport->segment()));
}

TEST_P(RdmaTest, AQueuePairInErrorBreaksThePairAndTheNextOneWorks) {
  open_and_connect();
  fill(pair_.a.transport->segment(), 6);
  set_link("down");
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 0, kSegmentBytes}}}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{2, kPeer}).ok());
  // The card gives up after its retries, which moves the queue pair to error.
  EXPECT_TRUE(pair_.until([&] { return pair_.a.of_peer<PeerBroken>(kPeer) != nullptr; }));
  set_link("up");
  ASSERT_NE(pair_.a.of_peer<PeerBroken>(kPeer), nullptr);
  EXPECT_FALSE(pair_.a.of_peer<PeerBroken>(kPeer)->process_gone);
  EXPECT_EQ(finish(pair_.a, 1)->status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(finish(pair_.a, 2)->status.code(), StatusCode::kUnavailable);
  for (Side* side : {&pair_.a, &pair_.b}) {
    ASSERT_TRUE(side->transport->post(Disconnect{kPeer}).ok());
    ASSERT_TRUE(pair_.until([&] { return side->of_peer<PeerClosed>(kPeer) != nullptr; }));
    EXPECT_TRUE(side->of_peer<PeerClosed>(kPeer)->writes_stopped);
  }
  clear(pair_.b.transport->segment());
  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer + 1, random_bits()));
  EXPECT_TRUE(all_zero(pair_.b.transport->segment())) << "a write of the broken pair has landed";
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{3, kPeer + 1, {{0, 0, kTestMiB}}}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{4, kPeer + 1}).ok());
  ASSERT_TRUE(finish(pair_.a, 4)->status.ok());
  const auto source = pair_.a.transport->segment();
  EXPECT_TRUE(
      std::equal(source.begin(), source.begin() + kTestMiB, pair_.b.transport->segment().begin()));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RdmaTest);
INSTANTIATE_TEST_SUITE_P(Transports, RdmaTest,
                         ::testing::ValuesIn(over_rdma() ? std::vector<std::string>{"rc"}
                                                         : std::vector<std::string>{}),
                         [](const auto& param) { return param.param; });

TEST(UcxTransportChoice, AutoTakesSharedMemoryOnOneHost) {
  Pair pair;
  pair.a.open(test_config("auto", 1u << 20), 1);
  pair.b.open(test_config("auto", 1u << 20), 2);
  ASSERT_NO_FATAL_FAILURE(pair.connect(kPeer, 3));
  EXPECT_EQ(pair.a.of_peer<PeerReady>(kPeer)->transport, TransportKind::kSharedMemory);
  EXPECT_EQ(pair.b.of_peer<PeerReady>(kPeer)->transport, TransportKind::kSharedMemory);
}

TEST(UcxTransportChoice, AutoAndTcpMeetOnTcpAndSayWhy) {
  Pair pair;
  pair.a.open(test_config("auto", 1u << 20), 1);
  pair.b.open(test_config("tcp", 1u << 20), 2);
  ASSERT_NO_FATAL_FAILURE(pair.connect(kPeer, 3));
  EXPECT_EQ(pair.a.of_peer<PeerReady>(kPeer)->transport, TransportKind::kTcp);
  EXPECT_EQ(pair.b.of_peer<PeerReady>(kPeer)->transport, TransportKind::kTcp);
  EXPECT_EQ(pair.a.of_peer<PeerReady>(kPeer)->shared_memory, SharedMemory::kNotOffered);
}

TEST(UcxTransportChoice, AnotherHostMeansTcp) {
  Pair pair;
  pair.a.open(test_config("auto", 1u << 20), 1);
  pair.b.open(test_config("auto", 1u << 20), 2);
  auto elsewhere = [](const Side& side) {
    EndpointDescriptor descriptor = side.transport->descriptor();
    descriptor.host_id += " elsewhere";
    return descriptor;
  };
  ASSERT_TRUE(pair.a.transport->post(Connect{kPeer, 3, elsewhere(pair.b)}).ok());
  ASSERT_TRUE(pair.b.transport->post(Connect{kPeer, 3, elsewhere(pair.a)}).ok());
  ASSERT_TRUE(pair.until([&] {
    return pair.a.of_peer<PeerReady>(kPeer) != nullptr &&
           pair.b.of_peer<PeerReady>(kPeer) != nullptr;
  }));
  EXPECT_EQ(pair.a.of_peer<PeerReady>(kPeer)->transport, TransportKind::kTcp);
}

TEST(UcxTransportChoice, OneSideThatCannotUseSharedMemoryMovesBothToTcp) {
  Pair pair;
  pair.a.open(test_config("auto", 1u << 20), 1);
  pair.b.open(test_config("auto", 1u << 20), 2);
  EndpointDescriptor unseen = pair.b.transport->descriptor();
  EndpointDescriptor other = pair.a.transport->descriptor();
  unseen.socket_path += "-gone";
  ASSERT_TRUE(pair.a.transport->post(Connect{kPeer, 3, unseen}).ok());
  ASSERT_TRUE(pair.b.transport->post(Connect{kPeer, 3, other}).ok());
  ASSERT_TRUE(pair.until([&] {
    return pair.a.of_peer<PeerReady>(kPeer) != nullptr &&
           pair.b.of_peer<PeerReady>(kPeer) != nullptr;
  }));
  EXPECT_EQ(pair.a.of_peer<PeerReady>(kPeer)->transport, TransportKind::kTcp);
  EXPECT_EQ(pair.b.of_peer<PeerReady>(kPeer)->transport, TransportKind::kTcp);
  EXPECT_EQ(pair.a.of_peer<PeerReady>(kPeer)->shared_memory, SharedMemory::kProcessUnseen);
  EXPECT_EQ(pair.b.of_peer<PeerReady>(kPeer)->shared_memory, SharedMemory::kNotMappedByPeer);
}

// The kernel grants no file of that size, shared memory among them, while this lives.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit small{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SmallFiles() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    ::signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_{};
};

// UCX goes on without a device that is not there, and takes tcp for what was to go over rc.
TEST(UcxWithoutALaneOfRc, BytesGoAnotherWayAndBothSidesSayWhy) {
  TransportConfig config = test_config("tcp", kTestMiB);
  config.transport = "rc";
  config.rdma_device = "absent:1";
  Pair pair;
  for (auto [side, epoch] : {std::pair(&pair.a, 1), std::pair(&pair.b, 2)}) {
    auto created = create_ucx_transport(config, epoch);
    if (!created.ok()) {
      // Without enough memory to lock no device is tried.
      ASSERT_NE(created.status().message().find("ulimit -l"), std::string::npos)
          << created.status().to_string();
      return;
    }
    side->transport = std::move(created).value();
  }
  ASSERT_NO_FATAL_FAILURE(pair.connect(kPeer, 3));
  for (const Side* side : {&pair.a, &pair.b}) {
    const auto* ready = side->of_peer<PeerReady>(kPeer);
    EXPECT_EQ(ready->transport, TransportKind::kRc);
    EXPECT_EQ(ready->staged, "here: UCX took another transport than rc for one-sided operations");
  }
  fill(pair.a.transport->segment(), 6);
  ASSERT_TRUE(pair.a.transport->post(WriteSpans{1, kPeer, {{0, 0, kTestMiB}}}).ok());
  ASSERT_TRUE(pair.a.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(pair.until([&] { return pair.a.done(2) != nullptr; }));
  const auto from = pair.a.transport->segment();
  EXPECT_TRUE(std::equal(from.begin(), from.end(), pair.b.transport->segment().begin()));
}

// Too little for the segment, and for anything that UCX itself shares.
class UcxStagingTest : public ::testing::TestWithParam<std::pair<rlim_t, const char*>> {};

TEST_P(UcxStagingTest, ASegmentThatCannotBeSharedIsStagedAndSaysWhy) {
  constexpr uint64_t kBytes = 32u << 20;
  const auto [limit, word] = GetParam();
  Pair pair;
  {
    const SmallFiles small(limit);
    pair.a.open(test_config("auto", kBytes), 1);
    auto shared = create_ucx_transport(test_config("shm", kBytes), 9);
    EXPECT_FALSE(shared.ok()) << "asked for by name, it is an error";
  }
  const std::string reason = pair.a.transport->descriptor().staged;
  EXPECT_NE(reason.find(word), std::string::npos) << reason;
  EXPECT_EQ(pair.a.transport->descriptor().transports, "tcp");
  EXPECT_TRUE(all_zero(pair.a.transport->segment()));
  pair.b.open(test_config("auto", kBytes), 2);
  EXPECT_EQ(pair.b.transport->descriptor().staged, "");
  ASSERT_NO_FATAL_FAILURE(pair.connect(kPeer, 3));
  const auto* ready_a = pair.a.of_peer<PeerReady>(kPeer);
  const auto* ready_b = pair.b.of_peer<PeerReady>(kPeer);
  EXPECT_EQ(ready_a->transport, TransportKind::kTcp);
  EXPECT_EQ(ready_b->shared_memory, SharedMemory::kNotOffered);
  EXPECT_EQ(ready_a->staged, "here: " + reason);
  EXPECT_EQ(ready_b->staged, "at the peer: " + reason);
  fill(pair.a.transport->segment(), 5);
  ASSERT_TRUE(pair.a.transport->post(WriteSpans{1, kPeer, {{0, 0, kBytes}}}).ok());
  ASSERT_TRUE(pair.a.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(pair.until([&] { return pair.a.done(2) != nullptr; }));
  const auto from = pair.a.transport->segment();
  EXPECT_TRUE(std::equal(from.begin(), from.end(), pair.b.transport->segment().begin()));
}

INSTANTIATE_TEST_SUITE_P(Limits, UcxStagingTest,
                         ::testing::Values(std::pair<rlim_t, const char*>{16u << 20, "33554432"},
                                           std::pair<rlim_t, const char*>{1u << 16, "posix"}),
                         [](const auto& param) { return std::to_string(param.param.first); });

TEST(UcxTransportChoice, NothingInCommonIsRefusedWithBothValues) {
  Pair pair;
  pair.a.open(test_config("shm", 1u << 20), 1);
  pair.b.open(test_config("tcp", 1u << 20), 2);
  const Status status = pair.connect_side(pair.a, pair.b, kPeer, 3);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("\"shm\""), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("\"tcp\""), std::string::npos) << status.message();
}

TEST(UcxTransportChoice, BadConfigurationsAreRefusedByName) {
  const auto code = [](const TransportConfig& config) {
    auto result = create_ucx_transport(config, 1);
    return result.ok() ? StatusCode::kOk : result.status().code();
  };
  EXPECT_EQ(code(test_config("pigeon", 1u << 20)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(test_config("shm", 0)), StatusCode::kInvalidArgument);
  TransportConfig without_device;
  without_device.transport = "rc";
  without_device.segment_bytes = 1u << 20;
  EXPECT_EQ(code(without_device), StatusCode::kFailedPrecondition);
  TransportConfig config = test_config("tcp", 1u << 20);
  config.bind_interface = "nosuch0";
  auto result = create_ucx_transport(config, 1);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("nosuch0"), std::string::npos);
}

TEST(UcxTransportChoice, TooLittleSharedMemoryIsAnErrorWithBothFigures) {
  auto result = create_ucx_transport(test_config("shm", uint64_t{1} << 44), 1);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(result.status().message().find("17592186044416"), std::string::npos);
  EXPECT_NE(result.status().message().find("bytes left"), std::string::npos);
}

}  // namespace
}  // namespace crossdock
