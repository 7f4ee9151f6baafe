// The arithmetic of the model in several variants, chosen at run time, all bit-identical.
//
// Every output element is reduced in one fixed order that depends on neither the batch nor the
// thread that computes it: one chain of fused multiply-adds over the reduced dimension, ascending,
// from zero. Vector lanes lie across outputs, so a wider variant computes more chains, never
// another chain. The scalar variant is the reference and is kept for ever.
//
// All functions are pure, thread-safe and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "crossdock/sys/status.h"

namespace crossdock::kernels {

enum class ElementType : uint8_t { kF32 = 0, kBf16 = 1 };

inline size_t size_bytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

// Weights lie in panels of 16 outputs: element (k, output) of a panel at [k * 16 + output % 16].
// The last panel is padded with zero weights.
inline constexpr uint32_t kPanelOutputs = 16;

enum class Epilogue : uint8_t {
  kStore,   // y = product
  kAdd,     // y += product
  kSwiGlu,  // panels 2p and 2p+1 are gate and up of the same outputs: y = silu(gate) * up
};

// y[row][output] from x[row][0..depth): rows x num_outputs chains over depth.
struct Product {
  const float* x = nullptr;
  size_t x_stride = 0;  // floats from row to row
  uint32_t num_rows = 0;
  uint32_t tile_rows = 0;  // product_tile_rows(depth)
  uint32_t depth = 0;
  const std::byte* panels = nullptr;
  ElementType type = ElementType::kF32;
  Epilogue epilogue = Epilogue::kStore;
  uint32_t num_outputs = 0;
  float* y = nullptr;
  size_t y_stride = 0;

  // The unit of work: a panel, or with SwiGLU a pair of them.
  uint32_t num_units() const { return (num_outputs + kPanelOutputs - 1) / kPanelOutputs; }
};

// A product over many rows is cut into tiles of rows that stay in the second-level cache (256 KiB),
// each multiplied by many units.
inline uint32_t product_tile_rows(uint32_t depth) {
  constexpr uint32_t kTileFloats = 64 * 1024, kStep = 12, kRowsMax = 192;
  const uint32_t fitting = kTileFloats / depth / kStep * kStep;
  return fitting < kStep ? kStep : fitting < kRowsMax ? fitting : kRowsMax;
}

// Floats of scratch that `product` needs for a depth: the sums of a tile of rows.
inline size_t product_scratch_floats(uint32_t depth) {
  return size_t{4} * product_tile_rows(depth) * kPanelOutputs;
}

// One head's K or V of one block, for some query rows. `next` is what the caller reads after it, to
// be fetched early (it is never dereferenced; without a next block, the block itself).
struct KvBlock {
  const std::byte* bytes = nullptr;
  const std::byte* next = nullptr;
  ElementType type = ElementType::kF32;
  uint32_t head_dim = 0;  // a multiple of 8
};

// Floats of scratch that `scores` and `weighted_sum` need for a head_dim.
inline size_t block_scratch_floats(uint32_t head_dim) { return size_t{head_dim} * 32; }

// scores[row][slot] = chain over dim of q[row][dim] * k[dim][slot], for the 32 slots of a block.
struct Scores {
  const float* q = nullptr;  // [row][head_dim]
  uint32_t num_rows = 0;
  KvBlock k;
  float* scores = nullptr;
  size_t scores_stride = 0;
  float* scratch = nullptr;
};

// values[row][dim] continues its chain over slots of p[row][slot] * v[slot][dim], from slot_begin
// to slot_end of the block.
struct WeightedSum {
  const float* p = nullptr;  // [row][p_stride], indexed by slot
  size_t p_stride = 0;
  uint32_t num_rows = 0;
  KvBlock v;
  uint32_t slot_begin = 0;
  uint32_t slot_end = 0;
  float* values = nullptr;  // [row][head_dim]
  float* scratch = nullptr;
};

struct Kernels {
  const char* name;
  // Units [unit_begin, unit_end) of the product.
  void (*product)(const Product& product, uint32_t unit_begin, uint32_t unit_end, float* scratch);
  void (*scores)(const Scores& scores);
  // Over the first num_slots (at least one) scores: replaces them by exp(score - max), the rest up
  // to a multiple of 32 by zero, and gives max and sum. Lane i of 16 sums slots i, i+16, ...; the
  // lanes are then folded in halves. A score past num_slots is never used, whatever it is.
  void (*softmax)(float* scores, uint32_t num_slots, float* max, float* sum);
  void (*weighted_sum)(const WeightedSum& sum);
};

const Kernels& scalar_kernels();
// "auto": the widest that this processor runs; "avx2" | "scalar" by name. INVALID_ARGUMENT for an
// unknown name, FAILED_PRECONDITION where the processor lacks the instructions.
Result<const Kernels*> select_kernels(const std::string& name);

}  // namespace crossdock::kernels
