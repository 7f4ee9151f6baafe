// The parts of a decoder by themselves: rotary frequencies and the choice of experts.
#include <gtest/gtest.h>

#include <cmath>

#include "rope.h"
#include "routing.h"

namespace crossdock::testing {
namespace {

using Scaling = RopeConfig::Scaling;

RopeConfig rope_config(Scaling scaling) {
  RopeConfig config;
  config.dim = 8;
  config.theta = 10000.0f;
  config.scaling = scaling;
  config.factor = 4.0f;
  config.original_context_tokens = 512;
  return config;
}

// The frequencies are 1, 0.1, 0.01 and 0.001: wavelengths of 6.3, 63, 628 and 6,283 tokens.
TEST(Rope, StretchesEveryFrequencyOrTheLongWavelengthsAlone) {
  const Rope plain(rope_config(Scaling::kNone)), linear(rope_config(Scaling::kLinear));
  const Rope llama3(rope_config(Scaling::kLlama3));
  for (size_t i = 0; i < 4; ++i) {
    const float frequency = plain.inverse_frequency()[i];
    EXPECT_NEAR(frequency, std::pow(10.0, -double(i)), 1e-7);
    EXPECT_FLOAT_EQ(linear.inverse_frequency()[i], frequency / 4);
  }
  // Up to 512 / 4 tokens a wavelength is kept, from 512 on it is stretched.
  EXPECT_EQ(llama3.inverse_frequency()[1], plain.inverse_frequency()[1]);
  EXPECT_FLOAT_EQ(llama3.inverse_frequency()[2], plain.inverse_frequency()[2] / 4);
  RopeConfig between = rope_config(Scaling::kLlama3);
  between.original_context_tokens = 1024;  // 628 lies between 256 and 1,024
  const float blended = Rope(between).inverse_frequency()[2];
  const float smooth = (1024 / 628.3185f - 1) / 3;
  EXPECT_NEAR(blended, (1 - smooth) * 0.01f / 4 + smooth * 0.01f, 1e-8);
}

TEST(Rope, YarnBlendsByRotationsAndScalesTheMagnitude) {
  RopeConfig config = rope_config(Scaling::kYarn);
  // 32 rotations fit 512 tokens at dimension 0.41, one at 1.91: kept, blended by half, stretched.
  const Rope rope(config);
  EXPECT_FLOAT_EQ(rope.inverse_frequency()[0], 1.0f);
  EXPECT_NEAR(rope.inverse_frequency()[1], 0.1f / 4 * 0.5f + 0.1f * 0.5f, 1e-7);
  EXPECT_NEAR(rope.inverse_frequency()[2], 0.01f / 4, 1e-8);
  config.truncate = false;
  const double low = 8 * std::log(512 / (32 * 2 * M_PI)) / (2 * std::log(1e4));
  const double high = 8 * std::log(512 / (2 * M_PI)) / (2 * std::log(1e4));
  const double ramp = (1 - low) / (high - low);
  EXPECT_NEAR(Rope(config).inverse_frequency()[1], 0.1 / 4 * ramp + 0.1 * (1 - ramp), 1e-7);

  EXPECT_FLOAT_EQ(rope.magnitude(), 0.1f * std::log(4.0f) + 1);
  config.mscale = 1.0f;
  config.mscale_all_dim = 1.0f;
  EXPECT_EQ(Rope(config).magnitude(), 1.0f);
  config.attention_factor = 1.25f;
  EXPECT_EQ(Rope(config).magnitude(), 1.25f);
  float cosine[4], sine[4];
  Rope(config).angles(0, cosine, sine);
  EXPECT_EQ(cosine[3], 1.25f);
}

TEST(Rope, LatentScoresTakeTheSquareOfTheMagnitude) {
  ModelConfig model;
  model.attention = ModelConfig::Attention::kMla;
  model.mla.nope_dim = 128;
  model.mla.rope_dim = 64;
  model.rope = rope_config(Scaling::kYarn);
  EXPECT_FLOAT_EQ(softmax_scale(model), 1 / std::sqrt(192.0f));
  model.rope.mscale_all_dim = 0.5f;
  const float magnitude = 0.1f * 0.5f * std::log(4.0f) + 1;
  EXPECT_FLOAT_EQ(softmax_scale(model), magnitude * magnitude / std::sqrt(192.0f));
  model.attention = ModelConfig::Attention::kGqa;
  model.head_dim = 64;
  EXPECT_FLOAT_EQ(softmax_scale(model), 0.125f);
}

TEST(Rope, RotatesPairsSideBySideOrHalvesApart) {
  RopeConfig config = rope_config(Scaling::kNone);
  config.dim = 4;
  const float cosines[] = {0.0f, 1.0f}, sines[] = {1.0f, 0.0f};
  float halves[] = {1, 2, 3, 4}, pairs[] = {1, 2, 3, 4};
  Rope(config).rotate(halves, 1, 4, cosines, sines);
  EXPECT_EQ(std::vector<float>(halves, halves + 4), (std::vector<float>{-3, 2, 1, 4}));
  config.interleaved = true;
  Rope(config).rotate(pairs, 1, 4, cosines, sines);
  EXPECT_EQ(std::vector<float>(pairs, pairs + 4), (std::vector<float>{-2, 1, 3, 4}));
}

std::vector<Choice> choose(const MoeConfig& moe, const std::vector<float>& logits,
                           const float* bias = nullptr) {
  std::vector<float> scratch(route_scratch_floats(moe));
  std::vector<Choice> choices(moe.num_chosen);
  route(moe, logits.data(), bias, scratch.data(), choices.data());
  return choices;
}

std::vector<uint32_t> experts(const std::vector<Choice>& choices) {
  std::vector<uint32_t> ids;
  for (const auto& choice : choices) ids.push_back(choice.expert);
  return ids;
}

MoeConfig moe_config(uint32_t num_experts, uint32_t num_chosen) {
  MoeConfig moe;
  moe.num_experts = num_experts;
  moe.num_chosen = num_chosen;
  return moe;
}

TEST(Routing, TiesGoToTheLowerExpertAndChoicesAscend) {
  const auto choices = choose(moe_config(5, 3), {1, 2, 1, 2, 1});
  EXPECT_EQ(experts(choices), (std::vector<uint32_t>{0, 1, 3}));
  const float sum = 2 * std::exp(2.0f) + 3 * std::exp(1.0f);
  EXPECT_NEAR(choices[0].weight, std::exp(1.0f) / sum, 1e-6);
  EXPECT_NEAR(choices[1].weight, std::exp(2.0f) / sum, 1e-6);
}

TEST(Routing, NormalisesAndScales) {
  MoeConfig moe = moe_config(4, 2);
  moe.normalise = true;
  moe.scale = 2.5f;
  const auto choices = choose(moe, {0, 3, -1, 3});
  EXPECT_EQ(experts(choices), (std::vector<uint32_t>{1, 3}));
  EXPECT_NEAR(choices[0].weight, 1.25f, 1e-6);
}

TEST(Routing, ABiasChoosesButDoesNotWeigh) {
  MoeConfig moe = moe_config(4, 1);
  moe.scoring = MoeConfig::Scoring::kSigmoid;
  const float bias[] = {0, 0, 10, 0};
  const auto choices = choose(moe, {4, 0, 0, 0}, bias);
  EXPECT_EQ(experts(choices), (std::vector<uint32_t>{2}));
  EXPECT_NEAR(choices[0].weight, 0.5f, 1e-6);
}

TEST(Routing, GroupsAreRankedByTheirBestOrTheirBestTwo) {
  MoeConfig moe = moe_config(6, 2);
  moe.num_groups = 3;
  moe.num_chosen_groups = 1;
  const std::vector<float> logits = {3, -9, 2, 2, -9, 2.5};
  moe.selection = MoeConfig::Selection::kGroupMax;
  EXPECT_EQ(experts(choose(moe, logits)), (std::vector<uint32_t>{0, 1}));
  moe.selection = MoeConfig::Selection::kGroupTopTwo;
  moe.scoring = MoeConfig::Scoring::kSigmoid;
  EXPECT_EQ(experts(choose(moe, logits)), (std::vector<uint32_t>{2, 3}));
  moe.num_chosen_groups = 2;
  EXPECT_EQ(experts(choose(moe, logits)), (std::vector<uint32_t>{0, 2}));
}

TEST(Routing, NotANumberChoosesSomeExperts) {
  MoeConfig moe = moe_config(6, 4);
  moe.num_groups = 3;
  moe.num_chosen_groups = 2;
  moe.selection = MoeConfig::Selection::kGroupTopTwo;
  const auto ids = experts(choose(moe, std::vector<float>(6, NAN)));
  EXPECT_EQ(ids, (std::vector<uint32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace crossdock::testing
