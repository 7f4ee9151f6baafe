// Matrix products over weights packed into panels, in the formats that weights are served in.
//
// Every output element is reduced in one fixed order that depends on neither the batch nor the
// thread that computes it, ascending over the reduced dimension, from zero. Vector lanes lie across
// outputs, so a wider variant computes more chains, never another chain:
//   f32, bf16  one chain of fma over depth
//   fp8        per stretch of 128 a chain of fma over value / 256 (what the bits of an e4m3 give
//              when they are moved into an f16), from zero; then total = fma(chain, scale, total)
//   int8       per group of 32 the exact integer sum of products; total = fma(float(sum),
//              weight scale, total); the result is total * row scale
//   int4       as int8 over the unsigned nibbles, and after each group total = fma(minimum, sum of
//              the row's values of the group, total)
// Sums of integers are exact, so a variant may take them in any order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossdock::kernels {

enum class WeightFormat : uint8_t { kF32 = 0, kBf16 = 1, kFp8 = 2, kInt8 = 3, kInt4 = 4 };

// Weights lie in panels of 16 outputs; the last panel is padded with zero weights. A panel is
//   f32, bf16  [k][output]
//   fp8        per stretch of 128 k (the last may be shorter): 16 f32 scales, 256 times those of
//              the values, then e4m3 [k][output]
//   int8       per group of 32 k: 16 f16 scales, then 512 signed bytes
//   int4       per group of 32 k: 16 f16 scales, 16 f16 minimums, then 256 bytes of unsigned
//              nibbles n; weight = scale * n + minimum
// The order of the integers within a group (panel_layout.h) is the one that the kernels unpack
// most cheaply.
// Groups past the depth are padded with weights that give zero (rows are padded with zeros too).
inline constexpr uint32_t kPanelOutputs = 16;
inline constexpr uint32_t kFp8Stretch = 128;
inline constexpr uint32_t kGroup = 32;

constexpr bool is_integer(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
}
inline uint32_t num_groups(uint32_t depth) { return (depth + kGroup - 1) / kGroup; }
size_t panel_bytes(WeightFormat format, uint32_t depth);

// Activations for the integer formats, 16 bits with one scale a row: scale = max|x| / 32767, q =
// round_to_nearest_even(x * (32767 / max|x|)). A row of zeros has scale zero; one that holds a NaN
// or an infinity has scale NaN and values zero, one that is nowhere above 1e-34 is zero. (8 bits
// would cost 3 % of perplexity with one scale a row and 0.4 % with one a group of 32; 16 bits cost
// 0.001 %: SmolLM2-135M, 4,096 tokens.)
struct QuantisedRows {
  int16_t* values = nullptr;  // [row][groups * 32], zero past the depth
  float* scales = nullptr;    // [row]
  float* sums = nullptr;      // [row][groups]: the sum of the group's values, exact
  uint32_t groups = 0;        // num_groups(depth)
};

// One row of x into row `row` of `to`.
void quantise_row(const float* x, uint32_t depth, uint32_t row, const QuantisedRows& to);

enum class Epilogue : uint8_t {
  kStore,   // y = product
  kAdd,     // y += product
  kSwiGlu,  // panels 2p and 2p+1 are gate and up of the same outputs: y = silu(gate) * up
};

// y[row][output] from x[row][0..depth): rows x num_outputs chains over depth.
struct Product {
  const float* x = nullptr;
  size_t x_stride = 0;      // floats from row to row
  QuantisedRows quantised;  // of the same rows: what the integer formats read instead of x
  uint32_t num_rows = 0;
  uint32_t tile_rows = 0;  // product_tile_rows(depth)
  uint32_t depth = 0;
  const std::byte* panels = nullptr;
  WeightFormat format = WeightFormat::kF32;
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

// ---- packing: done once, when weights are loaded ----

// One panel from 16 outputs of `depth` f32 weights (null: padding). For fp8, int8 and int4 this
// quantises: fp8 with one scale an output and stretch (max / 448), int8 with one an output and
// group (max / 127, rounded to f16), int4 with scale and minimum an output and group such that
// weights that already are scale * n + minimum in f16 come back to the bit. Where a NaN or an
// infinity is among the weights of a scale, that scale is NaN.
void pack_panel(WeightFormat format, const float* const* rows, uint32_t depth, std::byte* panel);

// One fp8 panel from e4m3 bytes as a checkpoint has them, none of them NaN; scales[output][stretch]
// f32.
void pack_fp8_panel(const uint8_t* const* rows, const float* const* scales, uint32_t depth,
                    std::byte* panel);

// The f32 values of one output: the embedding of a token, and what tests compare.
void unpack_output(const std::byte* panels, WeightFormat format, uint32_t depth, uint32_t output,
                   float* row);

}  // namespace crossdock::kernels
