// The two 8-bit floating-point formats of the OCP FP8 specification (OFP8, revision 1.0), in
// branch-free integer arithmetic, so that loops over them vectorise.
//
//   e4m3  bias 7, 3 bits of mantissa, largest 448, no infinity, NaN is S.1111.111
//   e5m2  bias 15, 2 bits of mantissa, largest 57,344, infinities and NaN as IEEE 754 has them
//
// Encoding rounds to nearest, ties to even, and saturates: what is larger than the largest finite
// value, infinity included, becomes that value. NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace crossdock::kernels {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE5m2Max = 57344.0f;

// A format of 8 bits: sign, exponent, `kMantissa` bits of mantissa.
template <int kMantissa, int kBias>
struct Fp8 {
  static constexpr int kShift = 23 - kMantissa;  // between the mantissas of f32 and of this
  static constexpr uint32_t kNan = 0x7f;
  static constexpr uint32_t kLargest = kMantissa == 3 ? 0x7e : 0x7b;

  static uint8_t encode(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    // Normal: half a unit less the tie's bit is added, and the exponent changes its bias.
    const uint32_t odd = magnitude >> kShift & 1u;
    const uint32_t rounded = (magnitude + (1u << (kShift - 1)) - 1 + odd) >> kShift;
    const uint32_t normal = rounded - ((127u - kBias) << kMantissa);
    // Subnormal: the adder rounds, since the unit of `magic` in the last place is the smallest
    // subnormal. The largest of them rounds up into the smallest normal.
    constexpr auto kMagic = std::bit_cast<float>((151u - kBias - kMantissa) << 23);
    const float shifted = std::bit_cast<float>(magnitude) + kMagic;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kMagic);
    const uint32_t finite = magnitude < ((128u - kBias) << 23) ? subnormal : normal;
    const uint32_t saturated = magnitude >= decoded_bits(kLargest) ? kLargest : finite;
    return static_cast<uint8_t>(sign | (magnitude > 0x7f800000u ? kNan : saturated));
  }

  static float decode(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu, sign = (code & 0x80u) << 24;
    // Where the bits fall in an f32 is the value times 2^(bias - 127), subnormals included.
    constexpr auto kRebias = std::bit_cast<float>((254u - kBias) << 23);
    const auto value = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << kShift) * kRebias);
    const uint32_t special =
        magnitude == kLargest + 1 && kMantissa == 2 ? 0x7f800000u : 0x7fc00000u;
    return std::bit_cast<float>(sign | (magnitude > kLargest ? special : value));
  }

 private:
  // Of a normal value, as f32.
  static constexpr uint32_t decoded_bits(uint32_t magnitude) {
    return (magnitude << kShift) + ((127u - kBias) << 23);
  }
};

using E4m3 = Fp8<3, 7>;
using E5m2 = Fp8<2, 15>;

}  // namespace crossdock::kernels
