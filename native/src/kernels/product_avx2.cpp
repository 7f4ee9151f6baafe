// Products with AVX2 and FMA. Bit-identical to product_scalar.cpp: the same chains, eight of them a
// register.
#include "avx2_lanes.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

// The results of up to four neighbouring panels: [row][panel][16].
constexpr size_t kTilePanels = 4;
constexpr size_t kTileStride = kTilePanels * kPanelOutputs;
using Tile = float[3 * kTileStride];

// Panels of R rows: P at a time, into tile columns.
template <int R, int P, typename W>
__attribute__((noinline)) void panels(const Product& job, const W* weights, float* tile) {
  __m256 acc[R][2 * P];
  clear(acc);
  const size_t panel_size = size_t{job.depth} * kPanelOutputs;
  const Columns<W> b{weights, kPanelOutputs, panel_size, static_cast<ptrdiff_t>(P * panel_size)};
  // One row streams the weights from memory: the panels after these are fetched meanwhile.
  accumulate<R == 1 ? Fetch::kAhead : Fetch::kNothing>(acc, job.x, job.x_stride, b, job.depth);
  store<W>(acc, tile, kTileStride);
}

// A stretch of one panel's depth, for R rows: their chains go on in `sums`.
struct Stretch {
  const float* x;
  size_t x_stride;
  uint32_t depth;
  bool first;  // the chains start here
  float* sums;
};

template <int R, Fetch F, typename W>
__attribute__((noinline)) void extend(const Stretch& stretch, const W* weights, ptrdiff_t ahead) {
  __m256 acc[R][2];
  if (stretch.first) {
    clear(acc);
  } else {
    fetch<W>(acc, stretch.sums, kTileStride);
  }
  accumulate<F>(acc, stretch.x, stretch.x_stride, Columns<W>{weights, kPanelOutputs, 0, ahead},
                stretch.depth);
  store<W>(acc, stretch.sums, kTileStride);
}

template <typename W>
using ExtendFunction = void (*)(const Stretch&, const W*, ptrdiff_t ahead);

template <Fetch F, typename W>
constexpr ExtendFunction<W> kExtend[kRows] = {extend<1, F, W>, extend<2, F, W>, extend<3, F, W>,
                                              extend<4, F, W>, extend<5, F, W>, extend<6, F, W>};

// One row of one unit: 16 outputs from the tile into y.
CROSSDOCK_INLINE void emit(const Product& job, uint32_t row, uint32_t unit, const float* tile) {
  __m256 low = _mm256_loadu_ps(tile), high = _mm256_loadu_ps(tile + kWidth);
  if (job.epilogue == Epilogue::kSwiGlu) {
    low = _mm256_mul_ps(silu_ps(low), _mm256_loadu_ps(tile + kPanelOutputs));
    high = _mm256_mul_ps(silu_ps(high), _mm256_loadu_ps(tile + kPanelOutputs + kWidth));
  }
  const uint32_t first = unit * kPanelOutputs;
  const bool adds = job.epilogue == Epilogue::kAdd;
  float* y = job.y + row * job.y_stride + first;
  if (first + kPanelOutputs <= job.num_outputs) {
    if (adds) {
      low = _mm256_add_ps(_mm256_loadu_ps(y), low);
      high = _mm256_add_ps(_mm256_loadu_ps(y + kWidth), high);
    }
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + kWidth, high);
    return;
  }
  float rest[kPanelOutputs];
  _mm256_storeu_ps(rest, low);
  _mm256_storeu_ps(rest + kWidth, high);
  for (uint32_t i = 0; first + i < job.num_outputs; ++i) y[i] = adds ? y[i] + rest[i] : rest[i];
}

// `num_panels` (at most four) from `unit` on are in the tile for `num_rows` rows from `row` on.
void emit_tile(const Product& job, uint32_t row, uint32_t num_rows, uint32_t unit,
               uint32_t num_panels, const float* tile) {
  const uint32_t step = job.epilogue == Epilogue::kSwiGlu ? 2 : 1;
  for (uint32_t r = 0; r < num_rows; ++r) {
    for (uint32_t p = 0; p < num_panels; p += step) {
      emit(job, row + r, unit + p / step, tile + r * kTileStride + p * kPanelOutputs);
    }
  }
}

// Few rows: weights stream from memory once, widened in registers.
template <int R, int P, typename W>
uint32_t narrow_pieces(const Product& job, uint32_t panel, uint32_t end) {
  const uint32_t step = job.epilogue == Epilogue::kSwiGlu ? 2 : 1;
  const size_t panel_size = size_t{job.depth} * kPanelOutputs;
  Tile tile;
  for (; panel + P <= end; panel += P) {
    panels<R, P, W>(job, reinterpret_cast<const W*>(job.panels) + panel * panel_size, tile);
    emit_tile(job, 0, R, panel / step, P, tile);
  }
  return panel;
}

// As many panels at once as hide the latency of an fma; what is left over singly or in pairs.
template <int R, typename W>
void product_narrow(const Product& job, uint32_t unit_begin, uint32_t unit_end) {
  constexpr int kTogether = R == 1 ? 4 : 2;
  const uint32_t step = job.epilogue == Epilogue::kSwiGlu ? 2 : 1;
  const uint32_t end = unit_end * step;
  uint32_t panel = narrow_pieces<R, kTogether, W>(job, unit_begin * step, end);
  if (kTogether > 2) panel = narrow_pieces<R, 2, W>(job, panel, end);
  if (panel < end) narrow_pieces<R, 1, W>(job, panel, end);
}

// Many rows. A stretch of a panel stays in the first level while the rows of a tile pass by, and
// the tile's rows stay in the second while the units pass by. Widening in registers costs nothing
// that binds (measured: 0.92 of the peak; 0.83 through a buffer of widened weights).
constexpr uint32_t kDepthTile = 256;  // 8 KiB of a panel in bf16

// Rows of x times one panel, into sums. The first rows fetch the next panel
// while they use this one.
template <typename W>
void sum_panel(const Product& job, const float* x, uint32_t num_rows, const W* panel, float* sums) {
  const auto ahead = static_cast<ptrdiff_t>(job.depth) * kPanelOutputs;
  for (uint32_t k = 0; k < job.depth; k += kDepthTile) {
    const uint32_t depth = job.depth - k < kDepthTile ? job.depth - k : kDepthTile;
    const W* w = panel + size_t{k} * kPanelOutputs;
    for (uint32_t row = 0; row < num_rows; row += kRows) {
      const uint32_t rows = num_rows - row < kRows ? num_rows - row : kRows;
      const Stretch stretch{x + row * job.x_stride + k, job.x_stride, depth, k == 0,
                            sums + row * kTileStride};
      if (row == 0) {
        kExtend<Fetch::kAhead, W>[rows - 1](stretch, w, ahead);
      } else {
        kExtend<Fetch::kNothing, W>[rows - 1](stretch, w, 0);
      }
    }
  }
}

template <typename W>
void product_wide(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* sums) {
  const uint32_t step = job.epilogue == Epilogue::kSwiGlu ? 2 : 1;
  const size_t panel_size = size_t{job.depth} * kPanelOutputs;
  for (uint32_t row = 0; row < job.num_rows; row += job.tile_rows) {
    const uint32_t left = job.num_rows - row;
    const uint32_t rows = left < job.tile_rows ? left : job.tile_rows;
    const float* x = job.x + row * job.x_stride;
    for (uint32_t unit = unit_begin; unit < unit_end; ++unit) {
      const W* panel = reinterpret_cast<const W*>(job.panels) + unit * step * panel_size;
      for (uint32_t p = 0; p < step; ++p) {
        sum_panel(job, x, rows, panel + p * panel_size, sums + p * kPanelOutputs);
      }
      emit_tile(job, row, rows, unit, step, sums);
    }
  }
}

template <typename W>
void product_of(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch) {
  switch (job.num_rows) {
    case 0: return;
    case 1: return product_narrow<1, W>(job, unit_begin, unit_end);
    case 2: return product_narrow<2, W>(job, unit_begin, unit_end);
    case 3: return product_narrow<3, W>(job, unit_begin, unit_end);
    default: return product_wide<W>(job, unit_begin, unit_end, scratch);
  }
}

}  // namespace

void product_avx2(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch) {
  switch (job.format) {
    case WeightFormat::kF32: return product_of<float>(job, unit_begin, unit_end, scratch);
    case WeightFormat::kBf16: return product_of<uint16_t>(job, unit_begin, unit_end, scratch);
    default: return product_scalar(job, unit_begin, unit_end, scratch);
  }
}

}  // namespace crossdock::kernels
