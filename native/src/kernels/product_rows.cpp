// The activations of the integer formats.
#include <bit>

#include "crossdock/kernels/math.h"
#include "crossdock/kernels/product.h"

namespace crossdock::kernels {
namespace {

constexpr float kLargest = 32767.0f;
constexpr float kMagnitudeMin = 1e-34f;  // below it kLargest / max is infinite

// Bits of magnitudes compare as the magnitudes do, infinity and NaN above all: integers, so that
// compilers use vectors.
float magnitude_max(const float* x, uint32_t depth) {
  int32_t max = 0;
  for (uint32_t k = 0; k < depth; ++k) {
    const int32_t bits = std::bit_cast<int32_t>(x[k]) & 0x7fffffff;
    max = max > bits ? max : bits;
  }
  return std::bit_cast<float>(max);
}

}  // namespace

void quantise_row(const float* x, uint32_t depth, uint32_t row, const QuantisedRows& to) {
  int16_t* values = to.values + size_t{row} * to.groups * kGroup;
  float* sums = to.sums + size_t{row} * to.groups;
  const float max = magnitude_max(x, depth);
  const bool finite = std::bit_cast<uint32_t>(max) < 0x7f800000u;
  const bool some = finite && max > kMagnitudeMin;
  to.scales[row] = some ? max / kLargest : finite ? 0.0f : max - max;
  const float inverse = kLargest / max;
  const uint32_t used = some ? depth : 0;
  for (uint32_t k = 0; k < used; ++k) {
    // The sum rounds to an integer, which its low bits hold in two's complement.
    const float shifted = x[k] * inverse + kRoundingMagic;
    values[k] = static_cast<int16_t>(std::bit_cast<uint32_t>(shifted));
  }
  for (uint32_t k = used; k < to.groups * kGroup; ++k) values[k] = 0;
  for (uint32_t group = 0; group < to.groups; ++group) {
    int32_t sum = 0;
    for (uint32_t k = 0; k < kGroup; ++k) sum += values[group * kGroup + k];
    sums[group] = static_cast<float>(sum);
  }
}

}  // namespace crossdock::kernels
