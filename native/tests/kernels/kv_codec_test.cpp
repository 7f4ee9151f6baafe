// FP8 against a table of its values, and K, V and latent rows against bounds that follow from the
// formats.
#include "crossdock/kernels/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "crossdock/kernels/fp8.h"
#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kSlots = 32;

// What the OCP specification's tables say of a format.
struct Format {
  int mantissa_bits;
  int bias;
  uint8_t largest;
  bool has_infinity;

  // The value of a finite code without sign.
  double value(uint32_t code) const {
    const uint32_t exponent = code >> mantissa_bits;
    const double fraction = std::ldexp(code & ((1u << mantissa_bits) - 1), -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias)
                         : std::ldexp(1.0 + fraction, static_cast<int>(exponent) - bias);
  }
  // Relative error of a rounded normal value, and half the distance of subnormals.
  double relative_error() const { return std::ldexp(1.0, -mantissa_bits - 1); }
  double half_subnormal() const { return std::ldexp(1.0, -bias - mantissa_bits); }
};

constexpr Format kE4m3Format{3, 7, 0x7e, false};
constexpr Format kE5m2Format{2, 15, 0x7b, true};

const Format& format_of(ElementType type) {
  return type == ElementType::kFp8E4m3 ? kE4m3Format : kE5m2Format;
}

// The nearest code of a magnitude, found by looking at all of them; ties take the even code.
uint8_t nearest_code(const Format& format, double magnitude) {
  if (magnitude >= format.value(format.largest)) return format.largest;
  uint8_t best = 0;
  double distance = magnitude;
  for (uint8_t code = 1; code <= format.largest; ++code) {
    const double d = std::fabs(format.value(code) - magnitude);
    if (d < distance || (d == distance && code % 2 == 0)) {
      best = code;
      distance = d;
    }
  }
  return best;
}

template <typename Fp8>
void expect_decodes(const Format& format) {
  for (uint32_t code = 0; code < 128; ++code) {
    const float positive = Fp8::decode(static_cast<uint8_t>(code));
    const float negative = Fp8::decode(static_cast<uint8_t>(code | 0x80u));
    EXPECT_TRUE(std::signbit(negative)) << code;
    if (code <= format.largest) {
      EXPECT_EQ(positive, format.value(code)) << code;
      EXPECT_EQ(negative, -format.value(code)) << code;
      EXPECT_EQ(Fp8::encode(positive), code);
      EXPECT_EQ(Fp8::encode(negative), code | 0x80u);
    } else if (format.has_infinity && code == format.largest + 1u) {
      EXPECT_EQ(positive, kInfinity);
      EXPECT_EQ(negative, -kInfinity);
    } else {
      EXPECT_TRUE(std::isnan(positive) && std::isnan(negative)) << code;
    }
  }
}

TEST(Fp8, EveryCodeIsWhatTheSpecificationSays) {
  expect_decodes<E4m3>(kE4m3Format);
  expect_decodes<E5m2>(kE5m2Format);
  EXPECT_EQ(E4m3::decode(0x7e), 448.0f);
  EXPECT_EQ(E4m3::decode(0x08), 0x1p-6f);
  EXPECT_EQ(E4m3::decode(0x01), 0x1p-9f);
  EXPECT_EQ(E5m2::decode(0x7b), 57344.0f);
  EXPECT_EQ(E5m2::decode(0x04), 0x1p-14f);
  EXPECT_EQ(E5m2::decode(0x01), 0x1p-16f);
}

template <typename Fp8>
void expect_rounds(const Format& format) {
  const auto expect = [&](float value) {
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    EXPECT_EQ(Fp8::encode(value), sign | nearest_code(format, std::fabs(value))) << value;
  };
  for (uint8_t code = 0; code < format.largest; ++code) {
    const auto middle = static_cast<float>((format.value(code) + format.value(code + 1)) / 2);
    for (const float value :
         {middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, kInfinity)}) {
      expect(value);
      expect(-value);
    }
  }
  // A prime step meets every exponent with all kinds of mantissas.
  for (uint64_t bits = 0; bits < 0x7f800000u; bits += 65537) {
    expect(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
}

TEST(Fp8, EncodingRoundsToNearestEven) {
  expect_rounds<E4m3>(kE4m3Format);
  expect_rounds<E5m2>(kE5m2Format);
}

TEST(Fp8, EncodingSaturatesAndKeepsNan) {
  for (const float large : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(E4m3::encode(large), 0x7e) << large;
    EXPECT_EQ(E4m3::encode(-large), 0xfe) << large;
  }
  for (const float large : {57344.0f, 61440.0f, 65536.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(E5m2::encode(large), 0x7b) << large;
    EXPECT_EQ(E5m2::encode(-large), 0xfb) << large;
  }
  EXPECT_TRUE(std::isnan(E4m3::decode(E4m3::encode(kNan))));
  EXPECT_TRUE(std::isnan(E5m2::decode(E5m2::encode(-kNan))));
  EXPECT_EQ(E4m3::encode(-0.0f), 0x80);
  EXPECT_EQ(E4m3::encode(std::numeric_limits<float>::denorm_min()), 0);
}

constexpr ElementType kAllTypes[] = {ElementType::kF32, ElementType::kBf16, ElementType::kFp8E4m3,
                                     ElementType::kFp8E5m2};

size_t head_bytes(ElementType type, uint32_t head_dim) {
  return kSlots * (head_dim * size_bytes(type) + (is_fp8(type) ? sizeof(float) : 0));
}

float scale_at(const std::vector<std::byte>& block, uint32_t head_dim, uint32_t slot) {
  float scale = 0.0f;
  std::memcpy(&scale, block.data() + size_t{kSlots} * head_dim + slot * sizeof(float),
              sizeof(float));
  return scale;
}

// Element (slot, dim) of a block, decoded by the specification's tables.
double element(const std::vector<std::byte>& block, ElementType type, uint32_t head_dim,
               size_t index, uint32_t slot) {
  if (type == ElementType::kF32) return reinterpret_cast<const float*>(block.data())[index];
  if (type == ElementType::kBf16) {
    return widen_bf16(reinterpret_cast<const uint16_t*>(block.data())[index]);
  }
  const auto code = std::to_integer<uint8_t>(block[index]);
  const double magnitude = format_of(type).value(code & 0x7fu);
  return (code & 0x80u ? -magnitude : magnitude) * scale_at(block, head_dim, slot);
}

// How far a stored value may be off, given the largest magnitude of its row.
double error_bound(ElementType type, double value, double largest) {
  if (type == ElementType::kF32) return 0.0;
  if (type == ElementType::kBf16) return std::max(std::fabs(value) * 0x1p-8, 0x1p-134);
  const Format& format = format_of(type);
  // f32 rounds the scale and the quotient, each by 2^-24 at most.
  const double scale = std::max(largest / format.value(format.largest), 0x1p-126) * (1.0 + 0x1p-23);
  return std::max(std::fabs(value) * (format.relative_error() + 0x1p-22),
                  format.half_subnormal() * scale * (1.0 + 0x1p-22));
}

// Rows whose values are of one size, of many, or mostly zero.
std::vector<float> random_row(uint32_t size, std::mt19937_64& random, int spread) {
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> exponent(-spread, spread);
  const int common = exponent(random);
  std::vector<float> row(size);
  for (float& value : row) {
    const int own = spread > 60 ? 0 : exponent(random);
    value = static_cast<float>(std::ldexp(normal(random), common + own / 2));
    if (random() % 8 == 0) value = 0.0f;
  }
  return row;
}

double largest_of(const std::vector<float>& row) {
  double largest = 0.0;
  for (const float value : row) largest = std::max(largest, std::fabs(double{value}));
  return largest;
}

TEST(KvCodec, WhatIsReadBackIsWithinTheFormatsError) {
  std::mt19937_64 random(11);
  for (const ElementType type : kAllTypes) {
    for (const uint32_t head_dim : {8u, 40u, 64u, 80u, 128u, 576u}) {
      for (const int spread : {0, 4, 30, 120}) {
        std::vector<std::byte> k(head_bytes(type, head_dim)), v(k.size());
        std::vector<std::vector<float>> rows;
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
          rows.push_back(random_row(head_dim, random, spread));
          store_k(rows[slot].data(), head_dim, slot, type, k.data());
          store_v(rows[slot].data(), head_dim, slot, type, v.data());
        }
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
          const double largest = largest_of(rows[slot]);
          for (uint32_t dim = 0; dim < head_dim; ++dim) {
            const double value = rows[slot][dim];
            const double of_k = element(k, type, head_dim, size_t{dim} * kSlots + slot, slot);
            const double of_v = element(v, type, head_dim, size_t{slot} * head_dim + dim, slot);
            ASSERT_LE(std::fabs(of_k - value), error_bound(type, value, largest)) << value;
            ASSERT_EQ(of_k, of_v);
          }
        }
      }
    }
  }
}

TEST(KvCodec, AScaleIsTheLargestMagnitudeOverTheFormats) {
  constexpr uint32_t kDim = 64;
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    const Format& format = format_of(type);
    const auto largest = static_cast<float>(format.value(format.largest));
    std::vector<std::byte> k(head_bytes(type, kDim)), v(k.size());
    std::vector<float> row(kDim, 0.5f);
    row[3] = -6.0f;
    store_k(row.data(), kDim, 5, type, k.data());
    store_v(row.data(), kDim, 5, type, v.data());
    EXPECT_EQ(scale_at(k, kDim, 5), 6.0f / largest);
    EXPECT_EQ(scale_at(v, kDim, 5), 6.0f / largest);
    EXPECT_EQ(std::to_integer<uint8_t>(k[3 * kSlots + 5]), 0x80u | format.largest);
    EXPECT_EQ(std::to_integer<uint8_t>(v[5 * kDim + 3]), 0x80u | format.largest);
    // Neighbours are untouched.
    EXPECT_EQ(scale_at(k, kDim, 4), 0.0f);
    EXPECT_EQ(std::to_integer<uint8_t>(k[3 * kSlots + 4]), 0u);

    row.assign(kDim, std::numeric_limits<float>::denorm_min());
    store_v(row.data(), kDim, 6, type, v.data());
    EXPECT_EQ(scale_at(v, kDim, 6), std::numeric_limits<float>::min());
  }
}

TEST(KvCodec, ZerosAreZeroBytesAndANanSpoilsItsRowAlone) {
  constexpr uint32_t kDim = 64;
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    for (const float odd : {0.0f, kNan, -kNan, kInfinity, -kInfinity}) {
      const std::vector<std::byte> before(head_bytes(type, kDim), std::byte{0x11});
      std::vector<std::byte> k = before, v = before;
      std::vector<float> row(kDim, odd == 0.0f ? 0.0f : 3.0f);
      row[17] = odd;
      store_k(row.data(), kDim, 9, type, k.data());
      store_v(row.data(), kDim, 9, type, v.data());
      for (const float scale : {scale_at(k, kDim, 9), scale_at(v, kDim, 9)}) {
        EXPECT_TRUE(odd == 0.0f ? scale == 0.0f : std::isnan(scale)) << odd;
      }
      for (uint32_t dim = 0; dim < kDim; ++dim) {
        EXPECT_EQ(k[dim * kSlots + 9], std::byte{});
        EXPECT_EQ(v[9 * kDim + dim], std::byte{});
      }
      EXPECT_EQ(std::memcmp(k.data(), before.data(), 9), 0);
      EXPECT_EQ(std::memcmp(v.data(), before.data(), 9 * kDim), 0);
    }
  }
}

// The arrangement of DeepSeek-V3's row built from the tables, with no codec of ours.
TEST(KvCodec, LatentRowsOfFp8AreFp8DsMla) {
  const LatentForm form{ElementType::kFp8E4m3, 512, 64};
  EXPECT_EQ(form.row_bytes(), 656u);
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    const auto latent = random_row(512, random, 3), rope = random_row(64, random, 3);
    std::vector<std::byte> row(656, std::byte{0xee});
    store_latent_row(latent.data(), rope.data(), form, row.data());
    for (uint32_t group = 0; group < 4; ++group) {
      float largest = 0.0f, scale = 0.0f;
      for (uint32_t i = 0; i < 128; ++i) {
        largest = std::max(largest, std::fabs(latent[group * 128 + i]));
      }
      std::memcpy(&scale, row.data() + 512 + group * 4, sizeof(scale));
      EXPECT_EQ(scale, largest / 448.0f);
      for (uint32_t i = 0; i < 128; ++i) {
        const float value = latent[group * 128 + i] / scale;
        const uint8_t sign = std::signbit(value) ? 0x80 : 0;
        EXPECT_EQ(std::to_integer<uint8_t>(row[group * 128 + i]),
                  sign | nearest_code(kE4m3Format, std::fabs(value)));
      }
    }
    for (uint32_t i = 0; i < 64; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, row.data() + 528 + 2 * i, sizeof(bits));
      EXPECT_EQ(bits, round_bf16(rope[i]));
    }
  }
}

TEST(KvCodec, LatentRowsOfWiderTypesAreTheLatentAndThenTheRest) {
  std::mt19937_64 random(6);
  const auto latent = random_row(24, random, 3), rope = random_row(8, random, 3);
  std::vector<float> both = latent;
  both.insert(both.end(), rope.begin(), rope.end());
  std::vector<float> wide(32);
  store_latent_row(latent.data(), rope.data(), {ElementType::kF32, 24, 8},
                   reinterpret_cast<std::byte*>(wide.data()));
  EXPECT_EQ(wide, both);
  std::vector<uint16_t> narrow(32);
  store_latent_row(latent.data(), rope.data(), {ElementType::kBf16, 24, 8},
                   reinterpret_cast<std::byte*>(narrow.data()));
  for (size_t i = 0; i < both.size(); ++i) EXPECT_EQ(narrow[i], round_bf16(both[i]));
}

TEST(KvCodec, ANanSpoilsItsGroupOfALatentAlone) {
  const LatentForm form{ElementType::kFp8E4m3, 256, 8};
  std::vector<float> latent(256, 1.0f), rope(8, 2.0f);
  latent[200] = kNan;
  rope[1] = kNan;
  std::vector<std::byte> row(form.row_bytes());
  store_latent_row(latent.data(), rope.data(), form, row.data());
  float scales[2];
  std::memcpy(scales, row.data() + form.scales_offset(), sizeof(scales));
  EXPECT_EQ(scales[0], 1.0f / 448.0f);
  EXPECT_TRUE(std::isnan(scales[1]));
  uint16_t bits[2];
  std::memcpy(bits, row.data() + form.rope_offset(), sizeof(bits));
  EXPECT_EQ(widen_bf16(bits[0]), 2.0f);
  EXPECT_TRUE(std::isnan(widen_bf16(bits[1])));
}

}  // namespace
}  // namespace crossdock::kernels
