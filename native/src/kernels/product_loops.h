// The products of the vector variants, over the instructions of one of them, `Isa`.
//
// A stretch of a panel stays in the first-level cache while the rows of a tile pass by in groups as
// large as the registers allow, and the tile's rows stay in the second while the panels pass by.
// Weights are widened in registers each time: that runs beside the multiplications (int4 on Zen 4:
// 0.80 of the peak; 0.74 when a stretch is widened once, into a buffer). Rows that make one group
// take their weights straight from memory, several panels at once where their few chains would
// neither hide an instruction's latency nor keep the memory busy.
//
// Included only by files compiled with the variant's flags; `Isa` lies in an anonymous namespace
// there, so that no copy of these functions is shared between variants.
#pragma once

#include "product_chains.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kTilePanels = 4;  // whose sums lie together
constexpr uint32_t kDepthTile = 256;

using Extend = void (*)(const Stretch&);

// Of `Chains`, by the number of rows: on one panel, and on as many as go together.
template <typename Chains>
struct Table {
  Extend one[Chains::kRows + 1] = {};
  Extend together[Chains::kRows + 1] = {};

  constexpr Table() { fill<Chains::kRows>(); }

 private:
  template <int R>
  constexpr void fill() {
    if constexpr (R > 0) {
      one[R] = Chains::template extend<R, 1>;
      together[R] = Chains::template extend<R, Chains::panels_together(R)>;
      fill<R - 1>();
    }
  }
};
template <typename Chains>
constexpr Table<Chains> kTable;

// Panels times all rows of the stretch, which are one group.
template <typename Chains>
void sum_few_rows(Stretch stretch, uint32_t num_rows, uint32_t num_panels) {
  const auto ahead = static_cast<ptrdiff_t>(stretch.panel_bytes);
  const auto together = static_cast<uint32_t>(Chains::panels_together(static_cast<int>(num_rows)));
  for (uint32_t p = 0; p < num_panels;) {
    const uint32_t count = num_panels - p < together ? 1 : together;
    stretch.ahead = ahead * count;
    const Table<Chains>& table = kTable<Chains>;
    (count == 1 ? table.one : table.together)[num_rows](stretch);
    stretch.panel += stretch.panel_bytes * count;
    stretch.sums += stretch.sums_stride * count;
    p += count;
  }
}

// One panel times all rows of the stretch, in groups as even as they come.
template <typename Chains>
void sum_many_rows(Stretch stretch, uint32_t num_rows) {
  const Stretch all = stretch;
  const auto ahead = static_cast<ptrdiff_t>(stretch.panel_bytes);
  const uint32_t num_groups = (num_rows + Chains::kRows - 1) / Chains::kRows;
  const size_t tile_bytes = Chains::depth_bytes(kDepthTile);
  for (uint32_t k = 0; k < all.depth; k += kDepthTile) {
    stretch.first = k;
    stretch.depth = all.depth - k < kDepthTile ? all.depth - k : kDepthTile;
    stretch.panel = all.panel + k / kDepthTile * tile_bytes;
    stretch.ahead = ahead;
    uint32_t begin = 0;
    for (uint32_t group = 1; group <= num_groups; ++group) {
      const uint32_t end = num_rows * group / num_groups;
      stretch.row = all.row + begin;
      stretch.sums = all.sums + size_t{begin} * kPanelOutputs;
      kTable<Chains>.one[end - begin](stretch);
      stretch.ahead = 0;
      begin = end;
    }
  }
}

// Rows [row, row + num_rows) times `num_panels` panels from `panel` on, into sums.
template <typename Chains>
void sum_panels(const Product& job, uint32_t row, uint32_t num_rows, const std::byte* panel,
                uint32_t num_panels, float* sums) {
  Stretch stretch{&job, row, 0, job.depth, panel, panel_bytes(job.format, job.depth), 0, sums};
  stretch.sums_stride = size_t{num_rows} * kPanelOutputs;
  if (num_rows <= Chains::kRows) {
    sum_few_rows<Chains>(stretch, num_rows, num_panels);
    return;
  }
  for (uint32_t p = 0; p < num_panels; ++p) {
    sum_many_rows<Chains>(stretch, num_rows);
    stretch.panel += stretch.panel_bytes;
    stretch.sums += stretch.sums_stride;
  }
}

// One row of one unit: 16 outputs from the sums into y.
template <typename Isa, bool kScaled>
CROSSDOCK_INLINE void emit(const Product& job, uint32_t row, uint32_t unit, const float* sums,
                           const float* up_sums) {
  auto value = Isa::load(sums);
  if constexpr (kScaled) {
    value = Isa::multiply(value, Isa::broadcast(job.quantised.scales + row));
  }
  if (job.epilogue == Epilogue::kSwiGlu) {
    auto up = Isa::load(up_sums);
    if constexpr (kScaled) {
      up = Isa::multiply(up, Isa::broadcast(job.quantised.scales + row));
    }
    value = Isa::multiply(Isa::silu(value), up);
  }
  const uint32_t first = unit * kPanelOutputs;
  const bool adds = job.epilogue == Epilogue::kAdd;
  float* y = job.y + row * job.y_stride + first;
  if (first + kPanelOutputs <= job.num_outputs) {
    Isa::store(y, adds ? Isa::add(Isa::load(y), value) : value);
    return;
  }
  float rest[kPanelOutputs];
  Isa::store(rest, value);
  for (uint32_t i = 0; first + i < job.num_outputs; ++i) y[i] = adds ? y[i] + rest[i] : rest[i];
}

template <typename Isa, typename Chains>
void product_of(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* sums) {
  const uint32_t step = job.epilogue == Epilogue::kSwiGlu ? 2 : 1;
  const size_t bytes = panel_bytes(job.format, job.depth);
  for (uint32_t row = 0; row < job.num_rows; row += job.tile_rows) {
    const uint32_t left = job.num_rows - row;
    const uint32_t rows = left < job.tile_rows ? left : job.tile_rows;
    const uint32_t units = kTilePanels / step;
    for (uint32_t unit = unit_begin; unit < unit_end; unit += units) {
      const uint32_t count = unit_end - unit < units ? unit_end - unit : units;
      sum_panels<Chains>(job, row, rows, job.panels + size_t{unit} * step * bytes, count * step,
                         sums);
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t u = 0; u < count; ++u) {
          const float* of_row = sums + (size_t{u} * step * rows + r) * kPanelOutputs;
          emit<Isa, Chains::kScaled>(job, row + r, unit + u, of_row,
                                     of_row + size_t{rows} * kPanelOutputs);
        }
      }
    }
  }
}

template <typename Isa>
void product_with(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch) {
  switch (job.format) {
    case WeightFormat::kF32:
      return product_of<Isa, PlainChains<Isa, typename Isa::F32>>(job, unit_begin, unit_end,
                                                                  scratch);
    case WeightFormat::kBf16:
      return product_of<Isa, PlainChains<Isa, typename Isa::Bf16>>(job, unit_begin, unit_end,
                                                                   scratch);
    case WeightFormat::kFp8:
      return product_of<Isa, Fp8Chains<Isa>>(job, unit_begin, unit_end, scratch);
    case WeightFormat::kInt8:
      return product_of<Isa, IntegerChains<Isa, typename Isa::Int8>>(job, unit_begin, unit_end,
                                                                     scratch);
    case WeightFormat::kInt4:
      return product_of<Isa, IntegerChains<Isa, typename Isa::Int4>>(job, unit_begin, unit_end,
                                                                     scratch);
  }
}

}  // namespace
}  // namespace crossdock::kernels
