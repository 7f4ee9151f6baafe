#include "crossdock/model/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "philox.h"

namespace crossdock {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SamplingParams valid() {
  SamplingParams params;
  params.max_tokens = 16;
  return params;
}

std::map<int32_t, double> frequencies(std::span<const float> logits, const SamplingParams& params,
                                      std::span<const int32_t> banned = {}) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> shares;
  for (int position = 0; position < kDraws; ++position) {
    shares[sample(logits, params, static_cast<uint64_t>(position), banned)] += 1.0 / kDraws;
  }
  return shares;
}

// The known answers that the authors of Philox publish.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = ~0u;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, GreedyTakesTheLowestIdOfATie) {
  SamplingParams params = valid();
  params.temperature = 0.0f;
  const std::vector<float> logits = {1.0f, 3.0f, 3.0f, 2.0f};
  EXPECT_EQ(sample(logits, params, 0, {}), 1);
  const std::vector<int32_t> banned = {1};
  EXPECT_EQ(sample(logits, params, 0, banned), 2);
  const std::vector<int32_t> more = {1, 2, 3};
  EXPECT_EQ(sample(logits, params, 0, more), 0);
}

TEST(Sampler, BrokenLogitsGiveADefinedToken) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingParams params = valid();
    params.temperature = temperature;
    EXPECT_EQ(sample(std::vector<float>{kNan, 1.0f, kNan}, params, 3, {}), 1);
    EXPECT_EQ(sample(std::vector<float>{kNan, kNan}, params, 3, {}), 0);
    EXPECT_EQ(sample(std::vector<float>{0.0f, kInfinity, kInfinity}, params, 3, {}), 1);
    EXPECT_EQ(sample(std::vector<float>{-kInfinity, -kInfinity}, params, 3, {}), 0);
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.2f), std::log(0.3f)};
  const auto shares = frequencies(logits, valid());
  EXPECT_NEAR(shares.at(0), 0.5, 0.02);
  EXPECT_NEAR(shares.at(1), 0.2, 0.02);
  EXPECT_NEAR(shares.at(2), 0.3, 0.02);
  SamplingParams cold = valid();
  cold.temperature = 0.5f;  // squares the odds: 25 : 4 : 9
  const auto sharper = frequencies(logits, cold);
  EXPECT_NEAR(sharper.at(0), 25.0 / 38, 0.02);
  EXPECT_NEAR(sharper.at(2), 9.0 / 38, 0.02);
}

TEST(Sampler, TopKAndTopPCutTheTail) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                     std::log(0.3f)};
  SamplingParams params = valid();
  params.top_k = 2;
  auto shares = frequencies(logits, params);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(1), 4.0 / 7, 0.02);
  EXPECT_NEAR(shares.at(3), 3.0 / 7, 0.02);

  params = valid();
  params.top_p = 0.65f;
  shares = frequencies(logits, params);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(1), 4.0 / 7, 0.02);

  params.top_p = 0.75f;
  EXPECT_EQ(frequencies(logits, params).size(), 3u);
  params.top_k = 3;  // then 0.65 of the three's mass is two of them
  params.top_p = 0.65f;
  EXPECT_EQ(frequencies(logits, params).size(), 2u);
  params.top_p = 1e-6f;
  EXPECT_EQ(frequencies(logits, params).size(), 1u);
  params = valid();
  params.top_k = 1;
  EXPECT_EQ(frequencies(logits, params).size(), 1u);
}

TEST(Sampler, ATieAtTheCutKeepsTheLowestIds) {
  const std::vector<float> logits(6, 1.0f);
  SamplingParams params = valid();
  params.top_k = 2;
  const std::vector<int32_t> banned = {0};
  const auto shares = frequencies(logits, params, banned);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_TRUE(shares.contains(1) && shares.contains(2));
}

TEST(Sampler, BannedIdsAreNeverChosen) {
  const std::vector<float> logits = {5.0f, 0.0f, 4.0f, 0.0f};
  const std::vector<int32_t> banned = {0, 2};
  const auto shares = frequencies(logits, valid(), banned);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(1), 0.5, 0.02);
}

TEST(Sampler, TheDrawIsAFunctionOfItsCoordinates) {
  const std::vector<float> logits(1000, 0.0f);
  const SamplingParams params = valid();
  const int32_t first = sample(logits, params, 17, {});
  EXPECT_EQ(sample(logits, params, 17, {}), first);
  SamplingParams other = params;
  std::set<int32_t> drawn = {first, sample(logits, params, 18, {}),
                             sample(logits, params, 17 + (uint64_t{1} << 32), {})};
  other.seed = 1;
  drawn.insert(sample(logits, other, 17, {}));
  other.seed = uint64_t{1} << 32;
  drawn.insert(sample(logits, other, 17, {}));
  other.seed = 0;
  other.choice = 1;
  drawn.insert(sample(logits, other, 17, {}));
  EXPECT_EQ(drawn.size(), 6u);
}

TEST(Sampler, ValidationNamesFieldAndBound) {
  EXPECT_TRUE(validate(valid(), 100).ok());
  const auto refused = [](auto change, const std::string& field) {
    SamplingParams params = valid();
    change(params);
    const Status status = validate(params, 100);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(status.message().rfind(field, 0), 0u) << status.message();
  };
  for (const float bad : {-0.1f, 100.5f, kNan, kInfinity}) {
    refused([&](auto& p) { p.temperature = bad; }, "temperature");
  }
  for (const float bad : {0.0f, -1.0f, 1.01f, kNan}) {
    refused([&](auto& p) { p.top_p = bad; }, "top_p");
  }
  refused([](auto& p) { p.top_k = 101; }, "top_k");
  refused([](auto& p) { p.max_tokens = 0; }, "max_tokens");
  refused([](auto& p) { p.min_tokens = 17; }, "min_tokens");
  refused([](auto& p) { p.stop_token_ids = {100}; }, "stop_token_ids");
  refused([](auto& p) { p.stop_token_ids = {-1}; }, "stop_token_ids");
  refused([](auto& p) { p.stop_token_ids.assign(1025, 1); }, "stop_token_ids");
}

TEST(Sampler, DigestsTellRowsApart) {
  const std::vector<float> a = {1.0f, 0.0f}, b = {1.0f, -0.0f};
  EXPECT_EQ(digest(a), digest(std::vector<float>(a)));
  EXPECT_FALSE(digest(a) == digest(b));
}

}  // namespace
}  // namespace crossdock
