// Every variant against the reference, bit by bit, over shapes that hit each tile and each tail.
#include "crossdock/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "crossdock/kernels/attention.h"
#include "crossdock/kernels/elementwise.h"
#include "crossdock/kernels/math.h"
#include "floats.h"

namespace crossdock::kernels {
namespace {

const Kernels& fastest() { return *select_kernels("auto").value(); }

// The same numbers as elements of a type; every one is exact in bf16.
struct Elements {
  std::vector<float> f32;
  std::vector<uint16_t> bf16;

  Elements(size_t count, uint64_t seed) {
    for (const float value : random_floats(count, seed)) {
      bf16.push_back(round_bf16(value));
      f32.push_back(widen_bf16(bf16.back()));
    }
  }
  const std::byte* bytes(ElementType type) const {
    return type == ElementType::kF32 ? reinterpret_cast<const std::byte*>(f32.data())
                                     : reinterpret_cast<const std::byte*>(bf16.data());
  }
};

TEST(Kernels, ScoresAndWeightedSumsAreTheReferencesBits) {
  for (const uint32_t head_dim : {8u, 16u, 24u, 64u, 72u, 128u}) {
    const Elements block(size_t{head_dim} * kSlotsPerBlock, head_dim);
    const Elements second(size_t{head_dim} * kSlotsPerBlock, head_dim + 1);
    for (uint32_t rows = 1; rows <= 20; ++rows) {
      const auto q = random_floats(size_t{rows} * head_dim, rows);
      const auto p = random_floats(size_t{rows} * 64, rows + 50);
      for (const auto type : {ElementType::kF32, ElementType::kBf16}) {
        std::vector<float> scores[2], values[2], scratch(block_scratch_floats(rows, head_dim));
        const Kernels* variants[] = {&scalar_kernels(), &fastest()};
        const KvBlock kv{block.bytes(type), second.bytes(type), type, head_dim};
        for (int i = 0; i < 2; ++i) {
          scores[i].assign(rows * 40, 0.0f);
          variants[i]->attention.scores({q.data(), rows, kv, scores[i].data(), 40, scratch.data()});
          values[i].assign(rows * head_dim, 7.0f);
          WeightedSum sum{p.data(), 64, rows, kv, 0, 13, values[i].data(), scratch.data()};
          variants[i]->attention.weighted_sum(sum);
          sum.slot_begin = 13;
          sum.slot_end = 32;
          variants[i]->attention.weighted_sum(sum);
        }
        EXPECT_TRUE(same_bits(scores[0], scores[1])) << head_dim << " dims, " << rows << " rows";
        EXPECT_TRUE(same_bits(values[0], values[1])) << head_dim << " dims, " << rows << " rows";
      }
    }
  }
}

TEST(Kernels, SoftmaxIsTheReferencesBitsAndIgnoresUnusedSlots) {
  for (uint32_t slots = 1; slots <= 130; ++slots) {
    auto scores = random_floats(160, slots, 30.0f);
    scores[0] = slots % 5 == 0 ? -std::numeric_limits<float>::infinity() : scores[0];
    for (size_t i = slots; i < scores.size(); ++i) {
      scores[i] = i % 2 ? std::numeric_limits<float>::quiet_NaN() : 1e30f;
    }
    auto copy = scores;
    float max[2], sum[2];
    scalar_kernels().attention.softmax(scores.data(), slots, &max[0], &sum[0]);
    fastest().attention.softmax(copy.data(), slots, &max[1], &sum[1]);
    const uint32_t padded = (slots + 31) / 32 * 32;
    scores.resize(padded);
    copy.resize(padded);
    EXPECT_TRUE(same_bits(scores, copy)) << slots;
    EXPECT_EQ(max[0], max[1]);
    EXPECT_EQ(sum[0], sum[1]);
    EXPECT_TRUE(std::isfinite(sum[0]));
    for (size_t i = slots; i < padded; ++i) EXPECT_EQ(scores[i], 0.0f);
  }
}

TEST(Kernels, ExponentialIsWithinAnUlpOrTwo) {
  for (float x = -87.0f; x < 87.0f; x += 0.0137f) {
    const double expected = std::exp(static_cast<double>(x));
    EXPECT_NEAR(double{exp_f32(x)} / expected, 1.0, 2.4e-7) << x;
  }
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-1000.0f), 0.0f);
  EXPECT_EQ(exp_f32(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isfinite(exp_f32(1000.0f)));
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Kernels, Bf16RoundsToNearestEven) {
  EXPECT_EQ(round_bf16(1.0f), 0x3f80);
  EXPECT_EQ(round_bf16(1.0f + 0x1p-8f), 0x3f80);            // a tie: to even, down
  EXPECT_EQ(round_bf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  // a tie: to even, up
  EXPECT_EQ(round_bf16(1.0f + 0x1.1p-8f), 0x3f81);
  EXPECT_EQ(round_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(round_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(widen_bf16(round_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Kernels, RopeAnglesAreGoodToAnUlp) {
  const float frequencies[] = {1.0f, 0.25f, 0.0137f, 1e-4f};
  for (uint32_t position : {0u, 1u, 2u, 3u, 100u, 8191u, 131071u, 1000003u}) {
    float cosines[4], sines[4];
    rope_angles(position, frequencies, 4, cosines, sines);
    for (int i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      EXPECT_NEAR(cosines[i], std::cos(static_cast<double>(angle)), 6e-8) << position;
      EXPECT_NEAR(sines[i], std::sin(static_cast<double>(angle)), 6e-8) << position;
    }
  }
}

TEST(Kernels, SelectionIsByName) {
  EXPECT_STREQ(select_kernels("scalar").value()->name, "scalar");
  EXPECT_EQ(select_kernels("neon").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace crossdock::kernels
