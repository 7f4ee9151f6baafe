#include "crossdock/transfer/loopback.h"

#include "pair.h"

namespace crossdock {
namespace {

constexpr PeerId kPeer = 3;

class LoopbackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto [first, second] = create_loopback_pair(test_config("auto", 1u << 16), 1, 2);
    pair_.a.transport = std::move(first);
    pair_.b.transport = std::move(second);
  }
  Pair pair_;
};

TEST_F(LoopbackTest, IsReadyOnceBothSidesHaveConnected) {
  ASSERT_TRUE(pair_.connect_side(pair_.a, pair_.b, kPeer, 9).ok());
  pair_.a.poll();
  EXPECT_EQ(pair_.a.of_peer<PeerReady>(kPeer), nullptr);
  EXPECT_EQ(pair_.a.transport->post(Fence{1, kPeer}).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(pair_.connect_side(pair_.b, pair_.a, kPeer + 1, 9).ok());
  pair_.a.poll();
  pair_.b.poll();
  ASSERT_NE(pair_.a.of_peer<PeerReady>(kPeer), nullptr);
  EXPECT_NE(pair_.b.of_peer<PeerReady>(kPeer + 1), nullptr);
  EXPECT_EQ(pair_.a.of_peer<PeerReady>(kPeer)->transport, TransportKind::kLoopback);
}

TEST_F(LoopbackTest, IncarnationsMustAgree) {
  ASSERT_TRUE(pair_.connect_side(pair_.a, pair_.b, kPeer, 9).ok());
  ASSERT_TRUE(pair_.connect_side(pair_.b, pair_.a, kPeer, 10).ok());
  pair_.a.poll();
  EXPECT_EQ(pair_.a.of_peer<PeerReady>(kPeer), nullptr);
}

TEST_F(LoopbackTest, WritesReadsFencesAndMessages) {
  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer, 9));
  fill(pair_.a.transport->segment(), 1);
  ASSERT_TRUE(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 100, 50}, {50, 150, 50}}}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Fence{2, kPeer}).ok());
  ASSERT_TRUE(pair_.a.transport->post(Notify{kPeer, bytes_of("written")}).ok());
  pair_.a.poll();
  pair_.b.poll();
  EXPECT_EQ(pair_.a.done(1)->bytes, 100u);
  EXPECT_EQ(pair_.a.done(1)->num_transfers, 1u);
  EXPECT_TRUE(pair_.a.done(2)->status.ok());
  EXPECT_EQ(pair_.b.messages(), std::vector<std::string>{"written"});
  const auto source = pair_.a.transport->segment();
  EXPECT_TRUE(
      std::equal(source.begin(), source.begin() + 100, pair_.b.transport->segment().begin() + 100));
  ASSERT_TRUE(pair_.b.transport->post(ReadSpans{3, kPeer, {{1'000, 0, 10}}}).ok());
  EXPECT_TRUE(std::equal(source.begin(), source.begin() + 10,
                         pair_.b.transport->segment().begin() + 1'000));
}

TEST_F(LoopbackTest, RefusesWhatUcxRefuses) {
  EXPECT_EQ(pair_.a.transport->post(Fence{1, kPeer}).code(), StatusCode::kNotFound);
  EXPECT_EQ(pair_.a.transport->post(Disconnect{kPeer}).code(), StatusCode::kNotFound);
  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer, 9));
  EXPECT_EQ(pair_.connect_side(pair_.a, pair_.b, kPeer, 10).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(pair_.a.transport->post(WriteSpans{1, kPeer, {{0, 1u << 16, 1}}}).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LoopbackTest, DisconnectAndTheEndOfASideBreakTheOther) {
  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer, 9));
  ASSERT_TRUE(pair_.a.transport->post(Disconnect{kPeer}).ok());
  pair_.a.poll();
  pair_.b.poll();
  ASSERT_NE(pair_.a.of_peer<PeerClosed>(kPeer), nullptr);
  EXPECT_TRUE(pair_.a.of_peer<PeerClosed>(kPeer)->writes_stopped);
  ASSERT_NE(pair_.b.of_peer<PeerBroken>(kPeer), nullptr);
  EXPECT_FALSE(pair_.b.of_peer<PeerBroken>(kPeer)->process_gone);
  EXPECT_EQ(pair_.b.transport->post(Fence{1, kPeer}).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(pair_.b.transport->post(Disconnect{kPeer}).ok());

  ASSERT_NO_FATAL_FAILURE(pair_.connect(kPeer + 1, 10));
  pair_.a.transport.reset();
  pair_.b.poll();
  ASSERT_NE(pair_.b.of_peer<PeerBroken>(kPeer + 1), nullptr);
  EXPECT_TRUE(pair_.b.of_peer<PeerBroken>(kPeer + 1)->process_gone);
}

TEST(LoopbackHub, OneEpochBelongsToOneTransport) {
  LoopbackHub hub;
  auto first = hub.create_transport(test_config("auto", 4096), 1);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(hub.create_transport(test_config("auto", 4096), 1).status().code(),
            StatusCode::kAlreadyExists);
  {
    auto gone = std::move(first).value();
  }
  EXPECT_TRUE(hub.create_transport(test_config("auto", 4096), 1).ok());
}

}  // namespace
}  // namespace crossdock
