// Scale and minimum of a group of int4 weights.
#pragma once

#include <bit>
#include <cstdint>

#include "crossdock/kernels/math.h"

namespace crossdock::kernels {

// The sixteen values scale * n + minimum; both are f16. The scale may be negative.
struct Lattice {
  float scale = 0.0f;
  float minimum = 0.0f;

  float value(uint32_t n) const { return scale * static_cast<float>(n) + minimum; }
  // The n whose value is nearest; 0 when scale or minimum are NaN.
  uint32_t nibble(float weight) const {
    const float n = (weight - minimum) / scale;
    const float clamped = n > 0.0f ? (n < 15.0f ? n : 15.0f) : 0.0f;
    // The sum rounds to an integer, which its low bits hold.
    return std::bit_cast<uint32_t>(clamped + kRoundingMagic) & 15u;
  }
};

// For 32 finite weights: a lattice that holds each of them to the bit, where one is found; else
// that from the smallest to the largest of them.
Lattice lattice_of(const float* weights);

}  // namespace crossdock::kernels
