// Engines that expand their prompts (MLA): a position's form hangs on whether it was generated, so
// what a request gives must not hang on where or how often its positions are computed.
#include "engine_host.h"

namespace crossdock::testing {
namespace {

constexpr uint32_t kNumBlocks = 64;

class MlaPrefillTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TinyDecoder::random(tiny_config("DeepseekV3ForCausalLM"), "BF16", 3).write(directory_.path());
  }

  std::unique_ptr<EngineHost> make(MlaPrefill form, uint32_t num_blocks = kNumBlocks) {
    return std::make_unique<EngineHost>(hub_, directory_.path(), next_epoch_++, num_blocks,
                                        HostOptions{.kv_dtype = DType::kBf16, .mla_prefill = form});
  }
  std::unique_ptr<EngineHost> make() { return make(MlaPrefill::kExpanded); }

  static std::vector<int32_t> prompt(size_t length, uint64_t seed) {
    return random_tokens(length, 101, seed);
  }

  Outcome run(EngineHost& host, const link::Task& task) {
    host.send(link::Generate{task});
    host.wait([&] { return host.outcome(task.sequence_id).over(); });
    return host.outcome(task.sequence_id);
  }
  Outcome run(EngineHost& host, const std::vector<int32_t>& prompt, uint32_t max_tokens) {
    return run(host, task(next_id_++, prompt, max_tokens));
  }

  // The request that goes on behind the first num_generated tokens of `before`.
  link::Task replay(const std::vector<int32_t>& prompt, const Outcome& before,
                    uint32_t num_generated) {
    const auto max_tokens = static_cast<uint32_t>(before.tokens.size()) - num_generated;
    auto tokens = prompt;
    tokens.insert(tokens.end(), before.tokens.begin(), before.tokens.begin() + num_generated);
    link::Task again = task(next_id_++, std::move(tokens), max_tokens);
    again.num_generated_tokens = num_generated;
    return again;
  }

  static void expect_rest(const Outcome& rest, const Outcome& whole, uint32_t num_generated) {
    const auto from = static_cast<ptrdiff_t>(num_generated);
    EXPECT_EQ(rest.tokens, std::vector(whole.tokens.begin() + from, whole.tokens.end()));
    EXPECT_EQ(rest.digests, std::vector(whole.digests.begin() + from, whole.digests.end()));
  }

  TemporaryDirectory directory_;
  LoopbackHub hub_;
  uint64_t next_epoch_ = 101;
  uint64_t next_id_ = 1;
};

TEST_F(MlaPrefillTest, AHandoffGivesTheBitsOfOneEngine) {
  const auto prefill = make(), decode = make(), absorbing = make(MlaPrefill::kAbsorbed);
  connect(*prefill, *decode, 1, 77);
  for (const size_t length : {1u, 33u, 64u, 150u}) {
    const auto tokens = prompt(length, length);
    const Outcome absorbed = run(*absorbing, tokens, 12);
    for (int round = 0; round < 2; ++round) {  // cold, then with every prefix warm
      const uint64_t handoff = next_id_++;
      start_handoff(*prefill, *decode, handoff, tokens, 12);
      decode->wait([&] { return decode->outcome(handoff).over(); });
      prefill->wait([&] { return prefill->outcome(handoff).over(); });
      EXPECT_TRUE(prefill->outcome(handoff).handed_off);
      const Outcome local = run(*prefill, tokens, 12);
      EXPECT_EQ(decode->outcome(handoff).tokens, local.tokens) << length;
      EXPECT_EQ(decode->outcome(handoff).digests, local.digests) << length;
      EXPECT_EQ(local.num_cached_tokens, (length - 1) / kBlockTokens * kBlockTokens);
      // Alone a position has nothing to weigh, and both forms are the same sums.
      EXPECT_EQ(local.digests == absorbed.digests, length == 1) << length;
    }
  }
  prefill->wait_until_clean();
  decode->wait_until_clean();
}

TEST_F(MlaPrefillTest, AHistoryThatWasGeneratedIsNoCachedPrompt) {
  for (const MlaPrefill form : {MlaPrefill::kExpanded, MlaPrefill::kAbsorbed}) {
    const auto warm = make(form), cold = make(form);
    auto tokens = prompt(70, 5);
    const Outcome turn = run(*warm, tokens, 60);
    tokens.insert(tokens.end(), turn.tokens.begin(), turn.tokens.end());
    const auto question = prompt(9, 6);
    tokens.insert(tokens.end(), question.begin(), question.end());
    const Outcome second = run(*warm, tokens, 8);
    // Two blocks hold nothing but the first prompt; 129 tokens were computed.
    EXPECT_EQ(second.num_cached_tokens, form == MlaPrefill::kExpanded ? 64u : 128u);
    const Outcome expected = run(*cold, tokens, 8);
    EXPECT_EQ(expected.num_cached_tokens, 0u);
    EXPECT_EQ(second.tokens, expected.tokens);
    EXPECT_EQ(second.digests, expected.digests);
    // The prompt is in the tree now, and is found.
    EXPECT_EQ(run(*warm, tokens, 1).num_cached_tokens, 128u);
  }
}

TEST_F(MlaPrefillTest, AReplayGoesOnWithTheSameBits) {
  const auto first = make(), prefill = make(), decode = make();
  connect(*prefill, *decode, 1, 78);
  const auto tokens = prompt(50, 7);
  const Outcome whole = run(*first, tokens, 70);
  for (const uint32_t num_generated : {1u, 14u, 15u, 46u, 69u}) {
    const auto fresh = make();
    expect_rest(run(*fresh, replay(tokens, whole, num_generated)), whole, num_generated);
    // Where the history was generated its blocks are found.
    const Outcome again = run(*first, replay(tokens, whole, num_generated));
    expect_rest(again, whole, num_generated);
    EXPECT_EQ(again.num_cached_tokens, (50 + num_generated - 1) / kBlockTokens * kBlockTokens);
    // By way of a handoff, whose source computes generated positions.
    const link::Task moved = replay(tokens, whole, num_generated);
    const uint64_t id = moved.sequence_id;
    decode->send(link::Expect{.task = moved,
                              .handoff_high = id,
                              .handoff_low = id,
                              .attempt = 2,
                              .source_epoch = prefill->epoch()});
    prefill->send(link::Prefill{
        .task = moved, .handoff_high = id, .handoff_low = id, .attempt = 2, .peer_id = 1});
    decode->wait([&] { return decode->outcome(id).over(); });
    expect_rest(decode->outcome(id), whole, num_generated);
  }
  // The alarm: without the mark the history is a prompt, whose bits are others.
  link::Task unmarked = replay(tokens, whole, 46);
  unmarked.num_generated_tokens = 0;
  const Outcome other = run(*make(), unmarked);
  EXPECT_NE(other.digests, std::vector(whole.digests.begin() + 46, whole.digests.end()));
}

TEST_F(MlaPrefillTest, PreemptionChangesNoBit) {
  // Twelve sequences that grow to six blocks each do not fit 64 blocks at once.
  const auto alone = make(), crowded = make();
  std::vector<Outcome> expected;
  for (uint64_t i = 0; i < 12; ++i) expected.push_back(run(*alone, prompt(60, i), 130));
  for (uint64_t i = 0; i < 12; ++i) {
    crowded->send(link::Generate{task(900 + i, prompt(60, i), 130)});
  }
  for (uint64_t i = 0; i < 12; ++i) {
    crowded->wait([&] { return crowded->outcome(900 + i).over(); });
    EXPECT_EQ(crowded->outcome(900 + i).tokens, expected[i].tokens);
    EXPECT_EQ(crowded->outcome(900 + i).digests, expected[i].digests);
  }
  crowded->wait_until_clean();
}

TEST_F(MlaPrefillTest, APeerOfTheOtherFormIsRefused) {
  const auto expanding = make(), absorbing = make(MlaPrefill::kAbsorbed);
  expanding->send(link::ConnectPeer{.peer_id = 1,
                                    .epoch = absorbing->epoch(),
                                    .incarnation = 79,
                                    .mac_key = link::Bytes(32, 'k'),
                                    .descriptor = absorbing->ready().descriptor,
                                    .layout = absorbing->ready().layout});
  expanding->wait([&] { return expanding->peer_closed(1); });
  EXPECT_FALSE(expanding->peer_connected(1));
}

TEST_F(MlaPrefillTest, WhatWasGeneratedLeavesAPrompt) {
  const auto host = make();
  link::Task all = task(1, {1, 2, 3}, 4);
  all.num_generated_tokens = 3;
  EXPECT_EQ(run(*host, all).code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace crossdock::testing
