// Where an integer weight lies within its group of a panel: behind the scales (and minimums), in
// vectors of 64 bytes with 4 for each output, so that a lane of 32 bits holds weights of one
// output.
//
// The instructions multiply pairs of 16-bit numbers that neighbour in depth, so a lane's halves are
// neighbours in depth. What a 16-bit half holds comes apart by shifts: for int8 the pair's weight
// of two neighbouring pairs, low byte first, for int4 that of four, lowest nibble first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossdock/kernels/product.h"

namespace crossdock::kernels {

struct GroupLayout {
  size_t bytes;           // of a group
  size_t integers;        // where they start
  uint32_t vector_depth;  // k that 64 bytes hold
};
inline constexpr GroupLayout kInt8Group = {32 + 512, 32, 4};
inline constexpr GroupLayout kInt4Group = {64 + 256, 64, 8};

// The byte of a group that holds weight (k, output), and for int4 the shift of its nibble.
constexpr size_t int8_byte(uint32_t k, uint32_t output) {
  return kInt8Group.integers + size_t{k / 4} * 64 + size_t{output} * 4 + (k % 2) * 2 + k / 2 % 2;
}
constexpr size_t int4_byte(uint32_t k, uint32_t output) {
  return kInt4Group.integers + size_t{k / 8} * 64 + size_t{output} * 4 + (k % 2) * 2 + k / 4 % 2;
}
constexpr uint32_t int4_shift(uint32_t k) { return k / 2 % 2 * 4; }

}  // namespace crossdock::kernels
