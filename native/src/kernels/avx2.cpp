// AVX2 and FMA. Bit-identical to scalar.cpp: the same chains, eight of them a register.
//
// Compiled with its own flags, so it calls no inline function that another file might share.
#include <immintrin.h>

#include "crossdock/kernels/kernels.h"
#include "crossdock/kernels/math.h"
#include "select.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kBlockSlots = 32;
constexpr uint32_t kWidth = 8;
constexpr uint32_t kRows = 6;  // 6 rows x 16 outputs: 12 accumulators of the 16 registers

#define CROSSDOCK_INLINE inline __attribute__((always_inline))

CROSSDOCK_INLINE __m256 load(const float* p) { return _mm256_loadu_ps(p); }

CROSSDOCK_INLINE __m256 load(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Sixteen neighbouring columns as two registers. Those of bf16 come apart most cheaply as the even
// and the odd ones, one instruction each, so that is the order in which its accumulators hold them
// until they are stored. A lane's chain is the same wherever the lane lies.
struct Pair {
  __m256 first;
  __m256 second;
};

CROSSDOCK_INLINE Pair load_pair(const float* p) { return {load(p), load(p + kWidth)}; }

CROSSDOCK_INLINE Pair load_pair(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, high))};
}

CROSSDOCK_INLINE Pair in_order(Pair pair, const float*) { return pair; }

CROSSDOCK_INLINE Pair in_order(Pair pair, const uint16_t*) {
  const __m256 low = _mm256_unpacklo_ps(pair.first, pair.second);
  const __m256 high = _mm256_unpackhi_ps(pair.first, pair.second);
  return {_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

CROSSDOCK_INLINE Pair as_loaded(Pair pair, const float*) { return pair; }

CROSSDOCK_INLINE Pair as_loaded(Pair pair, const uint16_t*) {
  const __m256 even = _mm256_shuffle_ps(pair.first, pair.second, 0x88);
  const __m256 odd = _mm256_shuffle_ps(pair.first, pair.second, 0xdd);
  constexpr int kSwapMiddle = 0xd8;
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), kSwapMiddle)),
          _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), kSwapMiddle))};
}

CROSSDOCK_INLINE __m256 exp_ps(__m256 x) {
  const __m256 flush = _mm256_cmp_ps(x, _mm256_set1_ps(kExpMin), _CMP_LT_OQ);
  // The second operand of min is what comes back for a NaN.
  const __m256 clamped = _mm256_min_ps(_mm256_set1_ps(kExpMax), x);
  const __m256 magic = _mm256_set1_ps(kRoundingMagic);
  const __m256 shifted = _mm256_fmadd_ps(clamped, _mm256_set1_ps(kLog2E), magic);
  const __m256 n = _mm256_sub_ps(shifted, magic);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), clamped);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_fmadd_ps(r, _mm256_set1_ps(kExp6), _mm256_set1_ps(kExp5));
  p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(kExp4));
  p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(kExp3));
  p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(kExp2));
  p = _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r);
  p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(flush, _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
}

CROSSDOCK_INLINE __m256 silu_ps(__m256 x) {
  const __m256 negated = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp_ps(negated)));
}

// B as `count` rows of C registers, row by row `stride` apart; registers 2i and 2i+1 lie together,
// pairs `pair_stride` apart (16 when the columns are contiguous). What lies `ahead` of each element
// is fetched while this one is used, unless that is 0.
template <typename W>
struct Columns {
  const W* base;
  size_t stride;
  size_t pair_stride;
  ptrdiff_t ahead;
};

// Into the second level: the first has too few misses in flight to keep the memory busy (measured:
// 12 GB/s a core against 19 over blocks of 8 KiB).
enum class Fetch { kNothing, kAhead };

// acc[r][c] continues its chain over a[r][0..count) * b[0..count)[c].
template <Fetch F, int R, int C, typename W>
CROSSDOCK_INLINE void accumulate(__m256 (&acc)[R][C], const float* a, size_t a_stride,
                                 const Columns<W>& b, uint32_t count) {
  constexpr int kPerLine = 64 / (kWidth * sizeof(W));  // registers of a cache line
  const W* row = b.base;
  for (uint32_t k = 0; k < count; ++k, row += b.stride) {
    if constexpr (F != Fetch::kNothing) {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += kPerLine) {
        _mm_prefetch(reinterpret_cast<const char*>(row + (c / 2) * b.pair_stride + b.ahead),
                     _MM_HINT_T1);
      }
    }
    if constexpr (C == 1) {
      const __m256 column = load(row);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m256 value = _mm256_broadcast_ss(a + r * a_stride + k);
        acc[r][0] = _mm256_fmadd_ps(value, column, acc[r][0]);
      }
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += 2) {
        const Pair columns = load_pair(row + (c / 2) * b.pair_stride);
        // Each pair loads the values of A again: kept in registers across pairs, they would push
        // accumulators out to the stack (measured: half the speed).
        const float* values = a + k;
        asm volatile("" : "+r"(values));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const __m256 value = _mm256_broadcast_ss(values + r * a_stride);
          acc[r][c] = _mm256_fmadd_ps(value, columns.first, acc[r][c]);
          acc[r][c + 1] = _mm256_fmadd_ps(value, columns.second, acc[r][c + 1]);
        }
      }
    }
  }
}

template <int R, int C>
CROSSDOCK_INLINE void clear(__m256 (&acc)[R][C]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = _mm256_setzero_ps();
  }
}

// Accumulators from memory, in the order in which columns of W are loaded.
template <typename W, int R, int C>
CROSSDOCK_INLINE void fetch(__m256 (&acc)[R][C], const float* from, size_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r, from += stride) {
    if constexpr (C == 1) {
      acc[r][0] = load(from);
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += 2) {
        const Pair pair = as_loaded(load_pair(from + c * kWidth), static_cast<const W*>(nullptr));
        acc[r][c] = pair.first;
        acc[r][c + 1] = pair.second;
      }
    }
  }
}

template <typename W, int R, int C>
CROSSDOCK_INLINE void store(const __m256 (&acc)[R][C], float* to, size_t stride) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r, to += stride) {
    if constexpr (C == 1) {
      _mm256_storeu_ps(to, acc[r][0]);
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += 2) {
        const Pair pair = in_order({acc[r][c], acc[r][c + 1]}, static_cast<const W*>(nullptr));
        _mm256_storeu_ps(to + c * kWidth, pair.first);
        _mm256_storeu_ps(to + (c + 1) * kWidth, pair.second);
      }
    }
  }
}

// ---- product ----

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

void product(const Product& job, uint32_t unit_begin, uint32_t unit_end, float* scratch) {
  if (job.type == ElementType::kF32) {
    product_of<float>(job, unit_begin, unit_end, scratch);
  } else {
    product_of<uint16_t>(job, unit_begin, unit_end, scratch);
  }
}

// ---- attention ----

// Decode has few rows and streams K and V from memory: the next block is fetched meanwhile. More
// rows find the block in the cache.
template <int R>
constexpr Fetch kBlockFetch = R <= 3 ? Fetch::kAhead : Fetch::kNothing;

template <typename W>
CROSSDOCK_INLINE ptrdiff_t ahead_of(const KvBlock& block) {
  return (block.next - block.bytes) / static_cast<ptrdiff_t>(sizeof(W));
}

template <int R, int C, typename W>
CROSSDOCK_INLINE void score_tile(const Scores& job, uint32_t row, uint32_t slot) {
  const uint32_t head_dim = job.k.head_dim;
  __m256 acc[R][C];
  clear(acc);
  const Columns<W> b{reinterpret_cast<const W*>(job.k.bytes) + slot, kBlockSlots, 2 * kWidth,
                     ahead_of<W>(job.k)};
  accumulate<kBlockFetch<R>>(acc, job.q + size_t{row} * head_dim, head_dim, b, head_dim);
  store<W>(acc, job.scores + row * job.scores_stride + slot, job.scores_stride);
}

template <typename W>
void scores_of(const Scores& job) {
  uint32_t row = 0;
  for (; row + kRows <= job.num_rows; row += kRows) {
    score_tile<6, 2, W>(job, row, 0);
    score_tile<6, 2, W>(job, row, 2 * kWidth);
  }
  for (; row + 3 <= job.num_rows; row += 3) score_tile<3, 4, W>(job, row, 0);
  if (row + 2 == job.num_rows) score_tile<2, 4, W>(job, row, 0);
  if (row + 1 == job.num_rows) score_tile<1, 4, W>(job, row, 0);
}

// A bf16 block used by many rows is widened once.
KvBlock widened(const KvBlock& block, float* scratch) {
  const auto* from = reinterpret_cast<const uint16_t*>(block.bytes);
  for (size_t i = 0; i < size_t{block.head_dim} * kBlockSlots; i += kWidth) {
    _mm256_storeu_ps(scratch + i, load(from + i));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(scratch);
  return {bytes, bytes, ElementType::kF32, block.head_dim};
}

constexpr uint32_t kQueriesWorthWidening = 12;

void scores(const Scores& job) {
  if (job.k.type == ElementType::kF32) return scores_of<float>(job);
  if (job.num_rows < kQueriesWorthWidening) return scores_of<uint16_t>(job);
  Scores wide = job;
  wide.k = widened(job.k, job.scratch);
  scores_of<float>(wide);
}

void softmax(float* scores, uint32_t num_slots, float* max, float* sum) {
  const uint32_t padded = (num_slots + kBlockSlots - 1) / kBlockSlots * kBlockSlots;
  for (uint32_t slot = num_slots; slot < padded; ++slot) scores[slot] = -__builtin_inff();
  __m256 low = _mm256_set1_ps(-__builtin_inff()), high = low;
  for (uint32_t slot = 0; slot < padded; slot += 2 * kWidth) {
    low = _mm256_max_ps(low, _mm256_loadu_ps(scores + slot));
    high = _mm256_max_ps(high, _mm256_loadu_ps(scores + slot + kWidth));
  }
  low = _mm256_max_ps(low, high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  four = _mm_max_ss(four, _mm_shuffle_ps(four, four, 1));
  *max = _mm_cvtss_f32(four);
  const __m256 top = _mm256_set1_ps(*max);
  low = high = _mm256_setzero_ps();
  for (uint32_t slot = 0; slot < padded; slot += 2 * kWidth) {
    const __m256 a = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + slot), top));
    const __m256 b = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + slot + kWidth), top));
    _mm256_storeu_ps(scores + slot, a);
    _mm256_storeu_ps(scores + slot + kWidth, b);
    low = _mm256_add_ps(low, a);
    high = _mm256_add_ps(high, b);
  }
  low = _mm256_add_ps(low, high);
  four = _mm_add_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  four = _mm_add_ss(four, _mm_shuffle_ps(four, four, 1));
  *sum = _mm_cvtss_f32(four);
}

template <int R, int C, typename W>
CROSSDOCK_INLINE void value_tile(const WeightedSum& job, uint32_t row, uint32_t dim) {
  const uint32_t head_dim = job.v.head_dim;
  float* values = job.values + size_t{row} * head_dim + dim;
  __m256 acc[R][C];
  fetch<W>(acc, values, head_dim);
  const W* v = reinterpret_cast<const W*>(job.v.bytes) + size_t{job.slot_begin} * head_dim + dim;
  const Columns<W> b{v, head_dim, 2 * kWidth, ahead_of<W>(job.v)};
  accumulate<kBlockFetch<R>>(acc, job.p + row * job.p_stride + job.slot_begin, job.p_stride, b,
                             job.slot_end - job.slot_begin);
  store<W>(acc, values, head_dim);
}

// All dimensions of R rows, the widest tiles first. C: registers that fit beside R rows.
template <int R, int C, typename W>
CROSSDOCK_INLINE void value_rows(const WeightedSum& job, uint32_t row) {
  const uint32_t head_dim = job.v.head_dim;
  uint32_t dim = 0;
  for (; dim + C * kWidth <= head_dim; dim += C * kWidth) value_tile<R, C, W>(job, row, dim);
  if constexpr (C > 2) {
    for (; dim + 2 * kWidth <= head_dim; dim += 2 * kWidth) value_tile<R, 2, W>(job, row, dim);
  }
  if (dim < head_dim) value_tile<R, 1, W>(job, row, dim);
}

template <typename W>
void weighted_sum_of(const WeightedSum& job) {
  uint32_t row = 0;
  for (; row + kRows <= job.num_rows; row += kRows) value_rows<6, 2, W>(job, row);
  for (; row + 3 <= job.num_rows; row += 3) value_rows<3, 4, W>(job, row);
  if (row + 2 == job.num_rows) value_rows<2, 4, W>(job, row);
  if (row + 1 == job.num_rows) value_rows<1, 8, W>(job, row);
}

void weighted_sum(const WeightedSum& job) {
  if (job.v.type == ElementType::kF32) return weighted_sum_of<float>(job);
  if (job.num_rows < kQueriesWorthWidening) return weighted_sum_of<uint16_t>(job);
  WeightedSum wide = job;
  wide.v = widened(job.v, job.scratch);
  weighted_sum_of<float>(wide);
}

constexpr Kernels kAvx2{"avx2", product, scores, softmax, weighted_sum};

}  // namespace

const Kernels& avx2_kernels() { return kAvx2; }

}  // namespace crossdock::kernels
