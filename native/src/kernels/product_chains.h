// The products of the vector variants, over the instructions of one of them, `Isa`.
//
// A stretch of a panel stays in the first-level cache while the rows of a tile pass by in groups as
// large as the registers allow, and the tile's rows stay in the second while the panels pass by.
// Weights are widened in registers each time: that runs beside the multiplications and costs
// nothing that binds. Rows that make one group take their weights straight from memory, several
// panels at once where their few chains would not hide an instruction's latency.
//
// Included only by files compiled with the variant's flags; `Isa` lies in an anonymous namespace
// there, so that no copy of these functions is shared between variants.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "crossdock/kernels/product.h"

#define CROSSDOCK_INLINE inline __attribute__((always_inline))

namespace crossdock::kernels {
namespace {

constexpr uint32_t kTilePanels = 4;  // whose sums lie together
constexpr size_t kSumsStride = size_t{kTilePanels} * kPanelOutputs;
constexpr uint32_t kDepthTile = 256;
constexpr size_t kLine = 64;

// A stretch of depth of neighbouring panels, for a group of rows.
struct Stretch {
  const Product* job;
  uint32_t row;            // of job
  uint32_t first;          // k; a multiple of kDepthTile
  uint32_t depth;          // the stretch's
  const std::byte* panel;  // from k = 0
  size_t panel_bytes;
  ptrdiff_t ahead;  // what lies that far behind the weights is fetched meanwhile, unless 0
  float* sums;      // [row][panel][16]; ignored when the stretch is the first
};

// Into the second level: the first has too few misses in flight to keep the memory busy (measured:
// 12 GB/s a core against 19 over blocks of 8 KiB).
CROSSDOCK_INLINE void fetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}

// acc[r][p] goes on with x[r][0..depth) times 16 weights a step, `Weights` of them.
template <typename Isa, typename Weights, int R, int P>
CROSSDOCK_INLINE void chain(typename Isa::Floats (&acc)[R][P], const Stretch& stretch,
                            const float* x, const std::byte* weights, uint32_t depth) {
  const size_t x_stride = stretch.job->x_stride;
  constexpr size_t kStep = kPanelOutputs * sizeof(typename Weights::Type);
  for (uint32_t k = 0; k < depth; ++k, weights += kStep) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const std::byte* at = weights + p * stretch.panel_bytes;
      if (kStep >= kLine || k % (kLine / kStep) == 0) fetch(at + stretch.ahead);
      const auto column = Weights::widen(reinterpret_cast<const typename Weights::Type*>(at));
      // Each panel loads the values of x again: kept in registers across panels, they would push
      // accumulators out to the stack (measured: half the speed).
      const float* values = x + k;
      asm volatile("" : "+r"(values));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        acc[r][p] = Isa::fma(Isa::broadcast(values + r * x_stride), column, acc[r][p]);
      }
    }
  }
}

// f32 and bf16: one chain over the depth.
template <typename Isa, typename Weights>
struct PlainChains {
  static constexpr bool kScaled = false;  // by the row
  static constexpr int kRows = Isa::kRows;
  static constexpr int panels_together(int rows) { return Isa::panels_together(rows); }

  template <int R, int P>
  static __attribute__((noinline)) void extend(const Stretch& stretch) {
    typename Isa::Floats acc[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const float* sums = stretch.sums + r * kSumsStride + p * kPanelOutputs;
        acc[r][p] = stretch.first == 0 ? Isa::zero() : Weights::load_sums(sums);
      }
    }
    const float* x = stretch.job->x + stretch.row * stretch.job->x_stride + stretch.first;
    const size_t skipped = size_t{stretch.first} * kPanelOutputs * sizeof(typename Weights::Type);
    chain<Isa, Weights>(acc, stretch, x, stretch.panel + skipped, stretch.depth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        Weights::store_sums(stretch.sums + r * kSumsStride + p * kPanelOutputs, acc[r][p]);
      }
    }
  }
};

// fp8: a chain for each 128 of depth, scaled into the sum of its output.
template <typename Isa>
struct Fp8Chains {
  static constexpr bool kScaled = false;  // by the row
  static constexpr int kRows = Isa::kRows;
  static constexpr int panels_together(int rows) { return Isa::panels_together(rows); }

  template <int R, int P>
  static __attribute__((noinline)) void extend(const Stretch& stretch) {
    constexpr size_t kScaleBytes = kPanelOutputs * sizeof(float);
    constexpr size_t kBytes = kScaleBytes + size_t{kFp8Stretch} * kPanelOutputs;
    const float* x = stretch.job->x + stretch.row * stretch.job->x_stride;
    const uint32_t end = stretch.first + stretch.depth;
    for (uint32_t k = stretch.first; k < end; k += kFp8Stretch) {
      typename Isa::Floats acc[R][P];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[r][p] = Isa::zero();
      }
      const std::byte* base = stretch.panel + k / kFp8Stretch * kBytes;
      const uint32_t depth = end - k < kFp8Stretch ? end - k : kFp8Stretch;
      chain<Isa, typename Isa::Fp8>(acc, stretch, x + k, base + kScaleBytes, depth);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          float* sums = stretch.sums + r * kSumsStride + p * kPanelOutputs;
          const std::byte* scales = base + p * stretch.panel_bytes;
          Isa::store(sums, Isa::fma(acc[r][p], Isa::load(reinterpret_cast<const float*>(scales)),
                                    k == 0 ? Isa::zero() : Isa::load(sums)));
        }
      }
    }
  }
};

// int8 and int4: the sum of integers of each 32 of depth, scaled into the sum of its output.
template <typename Isa, typename Weights>
struct IntegerChains {
  static constexpr bool kScaled = true;
  static constexpr int kRows = Isa::kIntegerRows;
  static constexpr int panels_together(int rows) { return Isa::integer_panels_together(rows); }

  template <int R, int P>
  static __attribute__((noinline)) void extend(const Stretch& stretch) {
    using Floats = typename Isa::Floats;
    const QuantisedRows& rows = stretch.job->quantised;
    const uint32_t begin = stretch.first / kGroup;
    const uint32_t end = (stretch.first + stretch.depth + kGroup - 1) / kGroup;
    const size_t row_values = size_t{rows.groups} * kGroup;
    for (uint32_t g = begin; g < end; ++g) {
      const size_t at = size_t{stretch.row} * rows.groups + g;
      const std::byte* group = stretch.panel + g * Weights::kGroupBytes;
      typename Isa::Ints acc[R][P];
      sum_group<R, P>(acc, stretch, rows.values + at * kGroup, row_values, group);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const auto* scales = reinterpret_cast<const uint16_t*>(group + p * stretch.panel_bytes);
        const Floats scale = Isa::load_f16(scales);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          float* sums = stretch.sums + r * kSumsStride + p * kPanelOutputs;
          Floats total = g == 0 ? Isa::zero() : Isa::load(sums);
          total = Isa::fma(Isa::to_floats(acc[r][p]), scale, total);
          if constexpr (Weights::kHasMinimum) {
            const Floats minimum = Isa::load_f16(scales + kPanelOutputs);
            total =
                Isa::fma(Isa::broadcast(rows.sums + at + r * size_t{rows.groups}), minimum, total);
          }
          Isa::store(sums, total);
        }
      }
    }
  }

 private:
  template <int R, int P>
  static CROSSDOCK_INLINE void sum_group(typename Isa::Ints (&acc)[R][P], const Stretch& stretch,
                                         const int16_t* x, size_t x_stride,
                                         const std::byte* group) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) acc[r][p] = Isa::zero_ints();
    }
    constexpr int kVectors = (Weights::kGroupBytes - Weights::kIntegers) / kLine;
    constexpr int kVectorDepth = kGroup / kVectors;
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
      for (size_t line = 0; line < Weights::kGroupBytes; line += kLine) {
        fetch(group + p * stretch.panel_bytes + stretch.ahead + line);
      }
    }
#pragma GCC unroll 2
    for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 4
      for (int part = 0; part < kVectorDepth / 2; ++part) {
        const int16_t* values = x + vector * kVectorDepth + part * 2;
        asm volatile("" : "+r"(values));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const std::byte* at =
              group + p * stretch.panel_bytes + Weights::kIntegers + vector * kLine;
          const typename Isa::Ints pairs = Weights::widen(at, part);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            int32_t pair;
            std::memcpy(&pair, values + r * x_stride, sizeof(pair));
            acc[r][p] = Isa::add_products(acc[r][p], pairs, pair);
          }
        }
      }
    }
  }
};

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

// Rows [row, row + num_rows) times `num_panels` panels from `panel` on, into sums.
template <typename Chains>
void sum_panels(const Product& job, uint32_t row, uint32_t num_rows, const std::byte* panel,
                uint32_t num_panels, float* sums) {
  static constexpr Table<Chains> kTable;
  const size_t bytes = panel_bytes(job.format, job.depth);
  const auto ahead = static_cast<ptrdiff_t>(bytes);
  if (num_rows <= Chains::kRows) {
    const auto together =
        static_cast<uint32_t>(Chains::panels_together(static_cast<int>(num_rows)));
    for (uint32_t p = 0; p < num_panels;) {
      const uint32_t count = num_panels - p < together ? 1 : together;
      const Stretch all{&job,
                        row,
                        0,
                        job.depth,
                        panel + p * bytes,
                        bytes,
                        count * ahead,
                        sums + size_t{p} * kPanelOutputs};
      (count == 1 ? kTable.one : kTable.together)[num_rows](all);
      p += count;
    }
    return;
  }
  const uint32_t groups = (num_rows + Chains::kRows - 1) / Chains::kRows;
  for (uint32_t p = 0; p < num_panels; ++p, panel += bytes, sums += kPanelOutputs) {
    for (uint32_t k = 0; k < job.depth; k += kDepthTile) {
      const uint32_t depth = job.depth - k < kDepthTile ? job.depth - k : kDepthTile;
      uint32_t begin = 0;
      for (uint32_t group = 1; group <= groups; ++group) {  // as even as they come
        const uint32_t end = num_rows * group / groups;
        kTable.one[end - begin]({&job, row + begin, k, depth, panel, bytes, begin == 0 ? ahead : 0,
                                 sums + begin * kSumsStride});
        begin = end;
      }
    }
  }
}

// One row of one unit: 16 outputs from the sums into y.
template <typename Isa, bool kScaled>
CROSSDOCK_INLINE void emit(const Product& job, uint32_t row, uint32_t unit, const float* sums) {
  auto value = Isa::load(sums);
  if constexpr (kScaled) {
    value = Isa::multiply(value, Isa::broadcast(job.quantised.scales + row));
  }
  if (job.epilogue == Epilogue::kSwiGlu) {
    auto up = Isa::load(sums + kPanelOutputs);
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
          emit<Isa, Chains::kScaled>(job, row + r, unit + u,
                                     sums + r * kSumsStride + u * step * kPanelOutputs);
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
