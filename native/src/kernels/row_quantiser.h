// quantise_row of product.h, written for compilers to vectorise: included by a file of each set of
// instructions that it is compiled for. Nothing here depends on the order of a sum of floats.
#pragma once

#include <bit>

#include "crossdock/kernels/math.h"
#include "crossdock/kernels/product.h"

namespace crossdock::kernels {
namespace {

// Bits of magnitudes compare as the magnitudes do, infinity and NaN above all.
inline float row_magnitude_max(const float* x, uint32_t depth) {
  int32_t max = 0;
  for (uint32_t k = 0; k < depth; ++k) {
    const int32_t bits = std::bit_cast<int32_t>(x[k]) & 0x7fffffff;
    max = max > bits ? max : bits;
  }
  return std::bit_cast<float>(max);
}

// One group's values and their sum.
inline float quantise_group(const float* x, uint32_t count, float inverse, int16_t* values) {
  // The sum rounds to an integer, and the difference is that integer in two's complement.
  constexpr auto kZero = std::bit_cast<int32_t>(kRoundingMagic);
  int32_t sum = 0;
  for (uint32_t k = 0; k < count; ++k) {
    const int32_t value = std::bit_cast<int32_t>(x[k] * inverse + kRoundingMagic) - kZero;
    values[k] = static_cast<int16_t>(value);
    sum += value;
  }
  return static_cast<float>(sum);
}

inline void quantise(const float* x, uint32_t depth, uint32_t row, const QuantisedRows& to) {
  constexpr float kLargest = 32767.0f;
  constexpr float kMagnitudeMin = 1e-34f;  // below it kLargest / max is infinite
  int16_t* values = to.values + size_t{row} * to.groups * kGroup;
  float* sums = to.sums + size_t{row} * to.groups;
  const float max = row_magnitude_max(x, depth);
  const bool finite = std::bit_cast<uint32_t>(max) < 0x7f800000u;
  const bool some = finite && max > kMagnitudeMin;
  to.scales[row] = some ? max / kLargest : finite ? 0.0f : max - max;
  const float inverse = kLargest / max;
  const uint32_t used = some ? depth : 0, whole = used / kGroup;
  for (uint32_t group = 0; group < whole; ++group) {
    const uint32_t first = group * kGroup;
    sums[group] = quantise_group(x + first, kGroup, inverse, values + first);
  }
  for (uint32_t group = whole; group < to.groups; ++group) {
    const uint32_t first = group * kGroup, count = used > first ? used - first : 0;
    sums[group] = quantise_group(x + first, count, inverse, values + first);
    for (uint32_t k = count; k < kGroup; ++k) values[first + k] = 0;
  }
}

}  // namespace
}  // namespace crossdock::kernels
