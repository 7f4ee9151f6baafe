// Whole engines in one process, joined by the loopback transport: what the sanitizers see of the
// loop, its link, the transfer thread and the handoff together.
#include "engine_host.h"

namespace crossdock::testing {
namespace {

constexpr uint32_t kMaxTokens = 12;

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TinyDecoder::random(tiny_config(), "F32", 1).write(directory_.path());
    prefill_ = std::make_unique<EngineHost>(hub_, directory_.path(), 101, 64);
    decode_ = std::make_unique<EngineHost>(hub_, directory_.path(), 202, 64);
  }

  std::vector<int32_t> prompt(size_t length, uint64_t seed) const {
    return random_tokens(length, decode_->ready().vocab_size, seed);
  }

  // Whether a read pays is a matter of time; an engine that has seen none pass tries each.
  void read_always() {
    prefill_.reset();
    prefill_ = std::make_unique<EngineHost>(hub_, directory_.path(), 102, 64,
                                            HostOptions{.time_stands_still = true});
  }

  void connect(uint32_t peer, uint64_t incarnation) {
    testing::connect(*prefill_, *decode_, peer, incarnation);
  }

  void start_handoff(uint64_t handoff, const std::vector<int32_t>& prompt, uint32_t peer) {
    testing::start_handoff(*prefill_, *decode_, handoff, prompt, kMaxTokens, peer);
  }

  Outcome alone(EngineHost& host, uint64_t id, const std::vector<int32_t>& prompt,
                uint32_t max_tokens = kMaxTokens) {
    host.send(link::Generate{task(id, prompt, max_tokens)});
    host.wait([&] { return host.outcome(id).over(); });
    return host.outcome(id);
  }

  TemporaryDirectory directory_;
  LoopbackHub hub_;
  std::unique_ptr<EngineHost> prefill_;
  std::unique_ptr<EngineHost> decode_;
};

TEST_F(EngineTest, AHandoffGivesTheBitsOfOneEngine) {
  connect(1, 77);
  uint64_t id = 1;
  for (const size_t length : {1u, 31u, 32u, 33u, 64u, 150u}) {
    const auto tokens = prompt(length, length);
    for (int round = 0; round < 2; ++round) {  // cold, then with every prefix warm
      const uint64_t handoff = id++;
      start_handoff(handoff, tokens, 1);
      decode_->wait([&] { return decode_->outcome(handoff).over(); });
      prefill_->wait([&] { return prefill_->outcome(handoff).over(); });
      EXPECT_TRUE(prefill_->outcome(handoff).handed_off);
      const Outcome local = alone(*prefill_, id++, tokens);
      EXPECT_EQ(decode_->outcome(handoff).tokens, local.tokens) << length;
      EXPECT_EQ(decode_->outcome(handoff).num_tokens_first, 1u) << "it waited for the second";
      EXPECT_EQ(decode_->outcome(handoff).digests, local.digests) << length;
      EXPECT_EQ(local.tokens.size(), kMaxTokens);
      EXPECT_EQ(local.finish, link::Finish::kLength);
      EXPECT_EQ(local.num_cached_tokens, (length - 1) / kBlockTokens * kBlockTokens);
    }
  }
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
}

// The first turn is decoded on the decode engine, which alone holds its continuation.
TEST_F(EngineTest, ASecondTurnReadsWhatItsDecodePeerHolds) {
  read_always();
  connect(1, 82);
  EngineHost cold(hub_, directory_.path(), 303, 64);
  for (uint64_t turn = 0; turn < 4; ++turn) {
    const uint64_t first = 5000 + 10 * turn;
    std::vector<int32_t> tokens = prompt(100, turn);
    testing::start_handoff(*prefill_, *decode_, first, tokens, 70);
    decode_->wait([&] { return decode_->outcome(first).over(); });
    const auto& generated = decode_->outcome(first).tokens;
    ASSERT_EQ(generated.size(), 70u);
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    const auto more = prompt(40, 100 + turn);
    tokens.insert(tokens.end(), more.begin(), more.end());
    start_handoff(first + 1, tokens, 1);
    decode_->wait([&] { return decode_->outcome(first + 1).over(); });
    prefill_->wait([&] { return prefill_->outcome(first + 1).over(); });
    EXPECT_TRUE(prefill_->outcome(first + 1).handed_off);
    const Outcome alone_cold = alone(cold, first + 2, tokens);
    EXPECT_EQ(alone_cold.num_cached_tokens, 0u);
    EXPECT_EQ(decode_->outcome(first + 1).tokens, alone_cold.tokens);
    EXPECT_EQ(decode_->outcome(first + 1).digests, alone_cold.digests);
    EXPECT_EQ(decode_->outcome(first + 1).num_cached_tokens, 160u);
    EXPECT_EQ(prefill_->counter("pairs_blocks_read"), 2 * (turn + 1)) << "it lacks two blocks";
  }
  EXPECT_EQ(prefill_->counter("pairs_reads_failed"), 0u);
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
}

TEST_F(EngineTest, CancelsWhileHistoryIsReadLeaveNothing) {
  read_always();
  connect(1, 83);
  for (uint64_t i = 0; i < 12; ++i) {
    const uint64_t first = 6000 + 10 * i;
    std::vector<int32_t> tokens = prompt(64, i);
    testing::start_handoff(*prefill_, *decode_, first, tokens, 40);
    decode_->wait([&] { return decode_->outcome(first).over(); });
    const auto& generated = decode_->outcome(first).tokens;
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    start_handoff(first + 1, tokens, 1);
    std::this_thread::sleep_for(std::chrono::microseconds(50 * i));
    decode_->send(link::Cancel{first + 1});
    if (i % 2 == 0) prefill_->send(link::Cancel{first + 1});
  }
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
}

TEST_F(EngineTest, PreemptionChangesNoBit) {
  // Twelve sequences that grow to six blocks each do not fit 64 blocks at once.
  constexpr uint32_t kTokens = 130;
  std::vector<Outcome> expected;
  for (uint64_t i = 0; i < 12; ++i) {
    expected.push_back(alone(*prefill_, 100 + i, prompt(60, i), kTokens));
  }
  for (uint64_t i = 0; i < 12; ++i) {
    decode_->send(link::Generate{task(200 + i, prompt(60, i), kTokens)});
  }
  for (uint64_t i = 0; i < 12; ++i) {
    decode_->wait([&] { return decode_->outcome(200 + i).over(); });
    EXPECT_EQ(decode_->outcome(200 + i).tokens, expected[i].tokens);
    EXPECT_EQ(decode_->outcome(200 + i).digests, expected[i].digests);
  }
  decode_->wait_until_clean();
}

TEST_F(EngineTest, CancelsLeaveNothingWhereverTheyFall) {
  connect(1, 78);
  for (uint64_t i = 0; i < 40; ++i) {
    start_handoff(1000 + i, prompt(90 + i, i), 1);
    // Cancels on either side or both, after a growing wait.
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    if (i % 3 != 0) decode_->send(link::Cancel{1000 + i});
    if (i % 3 != 1) prefill_->send(link::Cancel{1000 + i});
    if (i % 3 == 0) {
      // The caller of Prefill went away: its decode stream is ended by the router in turn.
      decode_->send(link::Cancel{1000 + i});
    }
    if (i % 3 == 1) prefill_->send(link::Cancel{1000 + i});
  }
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
}

TEST_F(EngineTest, ABrokenPairEndsItsHandoffsAndANewOneWorks) {
  connect(1, 79);
  for (uint64_t i = 0; i < 6; ++i) start_handoff(2000 + i, prompt(120, i), 1);
  decode_->send(link::DisconnectPeer{1});
  decode_->wait([&] { return decode_->peer_closed(1); });
  prefill_->wait([&] { return prefill_->peer_closed(1); });
  decode_->send(link::PeerLost{prefill_->epoch() + 1});  // of another engine: changes nothing
  for (uint64_t i = 0; i < 6; ++i) {
    prefill_->wait([&] { return prefill_->outcome(2000 + i).over(); });
    decode_->send(link::Cancel{2000 + i});
    decode_->wait([&] { return decode_->outcome(2000 + i).over(); });
  }
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
  connect(2, 80);
  start_handoff(3000, prompt(50, 9), 2);
  decode_->wait([&] { return decode_->outcome(3000).over(); });
  EXPECT_EQ(decode_->outcome(3000).finish, link::Finish::kLength);
}

TEST_F(EngineTest, EnginesThatDoNotAgreeOnTheKeyPartAtOnce) {
  testing::connect(*prefill_, *decode_, 1, 77, 'x');
  start_handoff(1, prompt(70, 5), 1);
  decode_->wait([&] { return decode_->peer_closed(1); });
  // As the front does, which cannot know whether its Expect came before the pair broke.
  decode_->send(link::PeerLost{prefill_->epoch()});
  decode_->wait([&] { return decode_->outcome(1).over(); });
  EXPECT_EQ(decode_->outcome(1).code, StatusCode::kUnavailable);
  EXPECT_EQ(decode_->counter("handoff_refused_mac"), 1u);
  prefill_->wait([&] { return prefill_->outcome(1).over() && prefill_->peer_closed(1); });
  EXPECT_EQ(prefill_->outcome(1).code, StatusCode::kUnavailable);
  prefill_->wait_until_clean();
  decode_->wait_until_clean();
  connect(2, 78);
  start_handoff(2, prompt(70, 5), 2);
  decode_->wait([&] { return decode_->outcome(2).over(); });
  EXPECT_EQ(decode_->outcome(2).tokens.size(), kMaxTokens);
}

TEST_F(EngineTest, AHandoffIdIsUsedOnce) {
  connect(1, 81);
  start_handoff(4000, prompt(50, 1), 1);
  decode_->wait([&] { return decode_->outcome(4000).over(); });
  prefill_->wait([&] { return prefill_->outcome(4000).over(); });
  prefill_->send(link::Prefill{.task = task(4001, prompt(50, 1), 4),
                               .handoff_high = 4000,
                               .handoff_low = 4000,
                               .attempt = 1,
                               .peer_id = 1});
  prefill_->wait([&] { return prefill_->outcome(4001).over(); });
  EXPECT_EQ(prefill_->outcome(4001).code, StatusCode::kAlreadyExists);
  prefill_->wait_until_clean();
}

TEST_F(EngineTest, BadRequestsAreRefusedByFieldAndHoldNothing) {
  const auto code_of = [this](uint64_t id, const link::Command& command) {
    prefill_->send(command);
    prefill_->wait([&] { return prefill_->outcome(id).over(); });
    return prefill_->outcome(id).code;
  };
  EXPECT_EQ(code_of(1, link::Generate{task(1, {}, 4)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(2, link::Generate{task(2, {-1}, 4)}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(3, link::Generate{task(3, prompt(64 * 32 + 1, 1), 4)}),
            StatusCode::kInvalidArgument);
  link::Task hot = task(4, {1}, 4);
  hot.sampling.temperature = -1.0f;
  EXPECT_EQ(code_of(4, link::Generate{hot}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(5, link::Prefill{.task = task(5, {1}, 4), .handoff_low = 5, .peer_id = 9}),
            StatusCode::kUnavailable);
  prefill_->wait_until_clean();
}

}  // namespace
}  // namespace crossdock::testing
