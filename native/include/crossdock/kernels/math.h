// Scalar arithmetic that every variant of the kernels repeats bit for bit: each fma here is one
// instruction of a vector variant, in the same order.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace crossdock::kernels {

// exp(x) = 2^n * p(r), x = n ln2 + r, |r| <= ln2/2, p of degree 6 through Chebyshev nodes: relative
// error of the polynomial 1.1e-8, of the result under 1.2e-7.
inline constexpr float kExpMax = 88.0f;   // larger x gives exp(88)
inline constexpr float kExpMin = -87.0f;  // smaller x gives 0, so no subnormal appears
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62ep-1f;  // n * kLn2High is exact
inline constexpr float kLn2Low = 0x1.0bfbe8p-15f;
inline constexpr float kRoundingMagic = 0x1.8p+23f;  // adding it rounds to an integer
inline constexpr float kExp2 = 0.5f;
inline constexpr float kExp3 = 0x1.5554dep-3f;
inline constexpr float kExp4 = 0x1.55551ap-5f;
inline constexpr float kExp5 = 0x1.120b62p-7f;
inline constexpr float kExp6 = 0x1.6d10fcp-10f;

inline float exp_f32(float x) {
  if (x < kExpMin) return 0.0f;
  const float clamped = x < kExpMax ? x : (x == x ? kExpMax : x);
  const float shifted = std::fma(clamped, kLog2E, kRoundingMagic);
  const float n = shifted - kRoundingMagic;
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, clamped));
  float p = std::fma(r, kExp6, kExp5);
  p = std::fma(r, p, kExp4);
  p = std::fma(r, p, kExp3);
  p = std::fma(r, p, kExp2);
  p = std::fma(r * r, p, r) + 1.0f;
  // The low bits of `shifted` hold n in two's complement; the exponent field takes n + 127.
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

inline float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

inline float widen_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; NaN stays a (quiet) NaN.
inline uint16_t round_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Exact; NaN and infinity stay what they are.
inline float widen_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(bits & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return std::bit_cast<float>(sign | 0x70000000u | rest);
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f));
}

// Round to nearest, ties to even; what is too large becomes infinity, NaN stays a (quiet) NaN.
inline uint16_t round_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (value != value) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65,520 on
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, which the sum rounds to
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace crossdock::kernels
