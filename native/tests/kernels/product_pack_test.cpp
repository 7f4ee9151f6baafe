// Weights into panels and back, the number formats they go through, and the rows they meet.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"
#include "crossdock/kernels/product.h"
#include "floats.h"

namespace crossdock::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One panel of 16 outputs and back. Null rows are padding.
std::vector<std::vector<float>> round_trip(WeightFormat format,
                                           const std::vector<std::vector<float>>& outputs) {
  const auto depth = static_cast<uint32_t>(outputs[0].size());
  const float* rows[kPanelOutputs] = {};
  for (size_t i = 0; i < outputs.size(); ++i) rows[i] = outputs[i].data();
  std::vector<std::byte> panel(panel_bytes(format, depth), std::byte{0xab});
  pack_panel(format, rows, depth, panel.data());
  std::vector<std::vector<float>> back(kPanelOutputs, std::vector<float>(depth));
  for (uint32_t i = 0; i < kPanelOutputs; ++i) {
    unpack_output(panel.data(), format, depth, i, back[i].data());
  }
  return back;
}

std::vector<float> round_trip_one(WeightFormat format, const std::vector<float>& output) {
  return round_trip(format, {output})[0];
}

TEST(Formats, F16WidensAndRoundsAllItsNumbers) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    const uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float value = widen_f16(code);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
      EXPECT_EQ(std::isnan(widen_f16(round_f16(value))), mantissa != 0);
      continue;
    }
    const double magnitude = exponent == 0
                                 ? std::ldexp(mantissa, -24)
                                 : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    ASSERT_EQ(double{value}, bits & 0x8000 ? -magnitude : magnitude) << bits;
    ASSERT_EQ(round_f16(value), code);
    if (bits >= 0x7bff) continue;  // the neighbours of positive numbers decide where rounding turns
    const float next = widen_f16(static_cast<uint16_t>(bits + 1)), middle = (value + next) / 2;
    ASSERT_EQ(round_f16(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(round_f16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(round_f16(std::nextafter(middle, kInfinity)), bits + 1) << bits;
  }
  EXPECT_EQ(round_f16(65519.99f), 0x7bff);
  EXPECT_EQ(round_f16(65520.0f), 0x7c00);
  EXPECT_EQ(round_f16(-kInfinity), 0xfc00);
}

TEST(Pack, FloatsComeBack) {
  const auto values = random_floats(301, 3);
  EXPECT_EQ(round_trip_one(WeightFormat::kF32, values), values);
  const auto back = round_trip_one(WeightFormat::kBf16, values);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(back[i], widen_bf16(round_bf16(values[i])));
}

TEST(Pack, PaddingOutputsAreZero) {
  for (const auto format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kFp8,
                            WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto back = round_trip(format, {random_floats(37, 1), random_floats(37, 2)});
    EXPECT_NE(back[1][36], 0.0f);
    for (uint32_t output = 2; output < kPanelOutputs; ++output) {
      for (const float value : back[output]) EXPECT_EQ(value, 0.0f);
    }
  }
}

TEST(Pack, QuantisedWeightsAreWithinHalfAStep) {
  std::vector<std::vector<float>> outputs;
  for (uint32_t i = 0; i < kPanelOutputs; ++i) outputs.push_back(random_floats(300, i, 0.05f));
  const auto int8 = round_trip(WeightFormat::kInt8, outputs);
  const auto int4 = round_trip(WeightFormat::kInt4, outputs);
  const auto fp8 = round_trip(WeightFormat::kFp8, outputs);
  for (uint32_t i = 0; i < kPanelOutputs; ++i) {
    for (size_t k = 0; k < 300; ++k) {
      const float value = outputs[i][k];
      EXPECT_NEAR(int8[i][k], value, 0.3f / 127 / 2);  // no value is beyond 0.3
      EXPECT_NEAR(int4[i][k], value, 0.6f / 15 / 2);
      EXPECT_NEAR(fp8[i][k], value, std::fabs(value) / 15 + 1e-6);
    }
  }
}

TEST(Pack, Fp8ScalesByStretch) {
  std::vector<float> values(300, 0.0f);
  values[0] = 448.0f * 3;
  values[1] = 1.0f;
  values[128] = -448.0f / 1024;
  values[299] = 0.25f;  // alone in the last stretch
  values[298] = 1e-9f;
  const auto back = round_trip_one(WeightFormat::kFp8, values);
  EXPECT_EQ(back[0], values[0]);
  EXPECT_NEAR(back[1], 1.0f, 0.05f);
  EXPECT_EQ(back[128], values[128]);
  EXPECT_EQ(back[299], 0.25f);
  EXPECT_EQ(back[298], 0.0f);
  EXPECT_EQ(back[200], 0.0f);
}

TEST(Pack, Fp8OfACheckpointIsKept) {
  constexpr uint32_t kDepth = 150;
  std::vector<std::vector<uint8_t>> codes(kPanelOutputs);
  std::vector<std::vector<float>> scales(kPanelOutputs);
  const uint8_t* rows[kPanelOutputs] = {};
  const float* row_scales[kPanelOutputs] = {};
  for (uint32_t i = 0; i < kPanelOutputs - 1; ++i) {
    for (uint32_t k = 0; k < kDepth; ++k) {
      const uint32_t code = (i * 37 + k) % 256;
      codes[i].push_back(static_cast<uint8_t>((code & 0x7f) == 0x7f ? 0 : code));
    }
    scales[i] = {0.1f * static_cast<float>(i + 1), 0x1p-20f};
    rows[i] = codes[i].data();
    row_scales[i] = scales[i].data();
  }
  std::vector<std::byte> panel(panel_bytes(WeightFormat::kFp8, kDepth));
  pack_fp8_panel(rows, row_scales, kDepth, panel.data());
  std::vector<float> back(kDepth);
  for (uint32_t i = 0; i < kPanelOutputs; ++i) {
    unpack_output(panel.data(), WeightFormat::kFp8, kDepth, i, back.data());
    for (uint32_t k = 0; k < kDepth; ++k) {
      const float expected = rows[i] ? E4m3::decode(codes[i][k]) * scales[i][k / 128] : 0.0f;
      EXPECT_EQ(back[k], expected) << i << ", " << k;
    }
  }
}

// A checkpoint's groups: scale, minimum and the nibbles that occur.
struct Quartic {
  float scale;
  float minimum;
  uint32_t first;
  uint32_t last;
};

TEST(Pack, Int4HoldsWeightsOfALattice) {
  std::mt19937 random(5);
  std::vector<Quartic> groups = {{0.01f, -0.07f, 0, 15},
                                 {0.01f, -0.07f, 3, 11},
                                 {0.01f, -0.07f, 0, 14},
                                 {0.02f, 0.3f, 1, 15},
                                 {-0.05f, 0.4f, 0, 15},  // q4_0: the scale is negative, the
                                                         // minimum -8 times that
                                 {-0.013f, 0.104f, 2, 9},
                                 {0.01f, 0.02f, 7, 7},
                                 {0.0f, 0.123f, 0, 0},
                                 {1e-5f, -3e-5f, 0, 15},
                                 {1e-7f, 6e-8f, 0, 15},
                                 {0.5f, -200.0f, 4, 12},
                                 {3000.0f, -20000.0f, 0, 15}};
  for (int i = 0; i < 400; ++i) {
    const auto unit = [&] { return static_cast<float>(random() % 20001) / 10000.0f - 1.0f; };
    const uint32_t first = random() % 15, last = first + 1 + random() % (15 - first);
    groups.push_back({unit() * 0.1f, unit(), first, last});
  }
  for (const Quartic& group : groups) {
    const float scale = widen_f16(round_f16(group.scale));
    const float minimum = widen_f16(round_f16(group.minimum));
    std::vector<float> values;
    for (uint32_t k = 0; k < kGroup; ++k) {
      const uint32_t span = group.last - group.first + 1;
      const uint32_t n =
          k < 2 ? (k == 0 ? group.first : group.last) : group.first + random() % span;
      values.push_back(scale * static_cast<float>(n) + minimum);
    }
    EXPECT_EQ(round_trip_one(WeightFormat::kInt4, values), values)
        << group.scale << " * " << group.first << ".." << group.last << " + " << group.minimum;
  }
}

TEST(Pack, Int8HoldsWeightsOfItsKind) {
  std::mt19937 random(6);
  const float scale = widen_f16(round_f16(0.0123f));
  std::vector<float> values(96);
  for (auto& value : values) {
    value = scale * static_cast<float>(static_cast<int>(random() % 255) - 127);
  }
  for (size_t group = 0; group < 3; ++group) values[group * 32 + 5] = -127 * scale;
  EXPECT_EQ(round_trip_one(WeightFormat::kInt8, values), values);
}

TEST(Pack, WeightsThatAreNoNumbersShow) {
  for (const auto format : {WeightFormat::kFp8, WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const float strange : {kNan, kInfinity, -kInfinity}) {
      auto values = random_floats(256, 8);
      values[40] = strange;
      const auto back = round_trip_one(format, values);
      EXPECT_TRUE(std::isnan(back[33]));
      EXPECT_TRUE(std::isfinite(back[200]));
    }
  }
}

TEST(Pack, WeightsBeyondF16Saturate) {
  std::vector<float> values(32, 0.0f);
  values[1] = 3e38f;
  values[2] = -3e38f;
  EXPECT_EQ(round_trip_one(WeightFormat::kInt8, values)[1], 127 * 65504.0f);
  EXPECT_EQ(round_trip_one(WeightFormat::kInt8, values)[2], -127 * 65504.0f);
  EXPECT_EQ(round_trip_one(WeightFormat::kInt4, values)[1], 14 * 65504.0f);
  EXPECT_EQ(round_trip_one(WeightFormat::kInt4, values)[2], -65504.0f);
}

class Row {
 public:
  explicit Row(const std::vector<float>& x)
      : values(num_groups(depth(x)) * size_t{kGroup} * 2, 99),
        scales(2, 99.0f),
        sums(num_groups(depth(x)) * size_t{2}, 99.0f) {
    const QuantisedRows rows{values.data(), scales.data(), sums.data(), num_groups(depth(x))};
    quantise_row(x.data(), depth(x), 1, rows);
    EXPECT_EQ(values[0], 99);
    EXPECT_EQ(scales[0], 99.0f);
    EXPECT_EQ(sums[0], 99.0f);
    values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
    sums.erase(sums.begin(), sums.begin() + static_cast<ptrdiff_t>(sums.size() / 2));
    scale = scales[1];
  }

  std::vector<int16_t> values;
  std::vector<float> scales;
  std::vector<float> sums;
  float scale = 0.0f;

 private:
  static uint32_t depth(const std::vector<float>& x) { return static_cast<uint32_t>(x.size()); }
};

TEST(Rows, AreRoundedToTheNearest) {
  for (const uint32_t depth : {1u, 31u, 32u, 33u, 300u}) {
    const auto x = random_floats(depth, depth, 5.0f);
    const Row row(x);
    float max = 0.0f;
    for (const float value : x) max = std::max(max, std::fabs(value));
    EXPECT_EQ(row.scale, max / 32767.0f);
    for (uint32_t k = 0; k < row.values.size(); ++k) {
      EXPECT_EQ(row.values[k], k < depth ? std::nearbyint(x[k] * (32767.0f / max)) : 0.0f);
    }
    for (size_t group = 0; group < row.sums.size(); ++group) {
      int sum = 0;
      for (size_t k = 0; k < kGroup; ++k) sum += row.values[group * kGroup + k];
      EXPECT_EQ(row.sums[group], static_cast<float>(sum));
    }
  }
}

TEST(Rows, StrangeOnesAreZeroOrNoNumber) {
  for (const float strange : {kNan, kInfinity, -kInfinity}) {
    auto x = random_floats(40, 2);
    x[37] = strange;
    const Row row(x);
    EXPECT_TRUE(std::isnan(row.scale));
    EXPECT_EQ(row.values, std::vector<int16_t>(64, 0));
    EXPECT_EQ(row.sums, std::vector<float>(2, 0.0f));
  }
  for (const float small : {0.0f, -0.0f, 0x1p-149f, 1e-35f}) {
    const Row row(std::vector<float>(40, small));
    EXPECT_EQ(row.scale, 0.0f);
    EXPECT_EQ(row.values, std::vector<int16_t>(64, 0));
  }
  const Row large(std::vector<float>(3, std::numeric_limits<float>::max()));
  EXPECT_EQ(large.values[2], 32767);
}

}  // namespace
}  // namespace crossdock::kernels
