// Scale and minimum of a group of int4 weights.
#pragma once

#include <cstdint>

namespace crossdock::kernels {

inline constexpr uint16_t kNan16 = 0x7e00;

// The sixteen values scale * n + minimum; both are f16. The scale may be negative.
struct Lattice {
  uint16_t scale = 0;
  uint16_t minimum = 0;

  float value(uint32_t n) const;
  // The n whose value is nearest.
  uint32_t nibble(float weight) const;
};

// For 32 finite weights: a lattice that holds each of them to the bit, where one is found; else
// that from the smallest to the largest of them.
Lattice lattice_of(const float* weights);

}  // namespace crossdock::kernels
