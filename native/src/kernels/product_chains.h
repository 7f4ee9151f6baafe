// The chains of the products over the instructions of a variant, `Isa`: a stretch of a panel or
// several for a group of rows, in each of the formats.
//
// Included only by files compiled with the variant's flags; `Isa` lies in an anonymous namespace
// there, so that no copy of these functions is shared between variants.
#pragma once

#include <immintrin.h>

#include "crossdock/kernels/product.h"

#define CROSSDOCK_INLINE inline __attribute__((always_inline))

namespace crossdock::kernels {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kFp8ScaleBytes = kPanelOutputs * sizeof(float);
constexpr size_t kFp8Bytes = kFp8ScaleBytes + size_t{kFp8Stretch} * kPanelOutputs;

// A stretch of depth of neighbouring panels, for a group of rows.
struct Stretch {
  const Product* job;
  uint32_t row;            // of job
  uint32_t first;          // k; a multiple of 256
  uint32_t depth;          // the stretch's
  const std::byte* panel;  // from `first` on
  size_t panel_bytes;
  ptrdiff_t ahead;     // what lies that far behind the weights is fetched meanwhile, unless 0
  float* sums;         // [panel][row][16]; what they hold is ignored when the stretch is the first
  size_t sums_stride;  // from panel to panel

  CROSSDOCK_INLINE float* sums_of(int r, int p) const {
    return sums + p * sums_stride + static_cast<size_t>(r) * kPanelOutputs;
  }
};

// Whether weights behind those in use are fetched. Four panels are four streams, which the
// processor foresees itself, and better (measured on Zen 4, one row: bf16 0.82 of the memory's
// speed with fetching, 0.95 without; int8 0.77 and 0.87), unless they are taken up so slowly that
// it falls back (int4 0.86 and 0.73), as with more rows and fewer panels, too.
template <typename Weights, int P>
constexpr bool kFetches = P < 4 || Weights::kIsSlow;

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
      if constexpr (kFetches<Weights, P>) {
        if (kStep >= kLine || k % (kLine / kStep) == 0) fetch(at + stretch.ahead);
      }
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
  static constexpr size_t depth_bytes(size_t depth) {
    return depth * kPanelOutputs * sizeof(typename Weights::Type);
  }
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
        acc[r][p] = stretch.first == 0 ? Isa::zero() : Weights::load_sums(stretch.sums_of(r, p));
      }
    }
    const float* x = stretch.job->x + stretch.row * stretch.job->x_stride + stretch.first;
    chain<Isa, Weights>(acc, stretch, x, stretch.panel, stretch.depth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        Weights::store_sums(stretch.sums_of(r, p), acc[r][p]);
      }
    }
  }
};

// fp8: a chain for each 128 of depth, scaled into the sum of its output.
template <typename Isa>
struct Fp8Chains {
  static constexpr size_t depth_bytes(size_t depth) { return depth / kFp8Stretch * kFp8Bytes; }
  static constexpr bool kScaled = false;  // by the row
  static constexpr int kRows = Isa::kRows;
  static constexpr int panels_together(int rows) { return Isa::panels_together(rows); }

  template <int R, int P>
  static __attribute__((noinline)) void extend(const Stretch& stretch) {
    const float* x = stretch.job->x + stretch.row * stretch.job->x_stride + stretch.first;
    const std::byte* base = stretch.panel;
    for (uint32_t k = 0; k < stretch.depth; k += kFp8Stretch, base += kFp8Bytes) {
      typename Isa::Floats acc[R][P];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[r][p] = Isa::zero();
      }
      const uint32_t left = stretch.depth - k;
      chain<Isa, typename Isa::Fp8>(acc, stretch, x + k, base + kFp8ScaleBytes,
                                    left < kFp8Stretch ? left : kFp8Stretch);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          float* sums = stretch.sums_of(r, p);
          const std::byte* scales = base + p * stretch.panel_bytes;
          Isa::store(sums, Isa::fma(acc[r][p], Isa::load(reinterpret_cast<const float*>(scales)),
                                    stretch.first + k == 0 ? Isa::zero() : Isa::load(sums)));
        }
      }
    }
  }
};

// Values of R rows, each within reach of one address: every third row has a register, and its
// neighbours are one and two strides away. The compiler is kept from deriving the registers from
// each other, or it would make one for every value.
template <int R>
class RowValues {
 public:
  CROSSDOCK_INLINE RowValues(const int16_t* first, size_t stride) : stride_(stride) {
#pragma GCC unroll 4
    for (int i = 0; i < kNumBases; ++i) {
      bases_[i] = first + 3 * i * stride;
      asm("" : "+r"(bases_[i]));
    }
  }
  CROSSDOCK_INLINE const int16_t* at(int r, int k) const {
    return bases_[r / 3] + r % 3 * stride_ + k;
  }

 private:
  static constexpr int kNumBases = (R + 2) / 3;
  const int16_t* bases_[kNumBases];
  size_t stride_;
};

// int8 and int4: the sum of integers of each 32 of depth, scaled into the sum of its output.
template <typename Isa, typename Weights>
struct IntegerChains {
  static constexpr bool kScaled = true;
  static constexpr int kRows = Isa::kIntegerRows;
  static constexpr int panels_together(int rows) { return Isa::integer_panels_together(rows); }

  static constexpr size_t depth_bytes(size_t depth) {
    return depth / kGroup * Weights::kGroupBytes;
  }
  template <int R, int P>
  static __attribute__((noinline)) void extend(const Stretch& stretch) {
    typename Isa::Floats totals[R][P];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        totals[r][p] = stretch.first == 0 ? Isa::zero() : Isa::load(stretch.sums_of(r, p));
      }
    }
    const QuantisedRows& rows = stretch.job->quantised;
    const size_t first = size_t{stretch.row} * rows.groups + stretch.first / kGroup;
    const int16_t* x = rows.values + first * kGroup;
    const float* x_sums = rows.sums + first;
    const std::byte* group = stretch.panel;
    for (uint32_t k = 0; k < stretch.depth; k += kGroup, x += kGroup, ++x_sums) {
      typename Isa::Ints acc[R][P];
      sum_group<R, P>(acc, stretch, x, group);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const auto* scales = reinterpret_cast<const uint16_t*>(group + p * stretch.panel_bytes);
        const auto scale = Isa::load_f16(scales);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          totals[r][p] = Isa::fma(Isa::to_floats(acc[r][p]), scale, totals[r][p]);
        }
        if constexpr (Weights::kHasMinimum) {
          const auto minimum = Isa::load_f16(scales + kPanelOutputs);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            const auto x_sum = Isa::broadcast(x_sums + r * size_t{rows.groups});
            totals[r][p] = Isa::fma(x_sum, minimum, totals[r][p]);
          }
        }
      }
      group += Weights::kGroupBytes;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) Isa::store(stretch.sums_of(r, p), totals[r][p]);
    }
  }

 private:
  static constexpr int kVectors = (Weights::kGroupBytes - Weights::kIntegers) / kLine;
  static constexpr int kVectorDepth = kGroup / kVectors;

  template <int R, int P>
  static CROSSDOCK_INLINE void sum_group(typename Isa::Ints (&acc)[R][P], const Stretch& stretch,
                                         const int16_t* x, const std::byte* group) {
    const RowValues<R> values(x, size_t{stretch.job->quantised.groups} * kGroup);
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      if constexpr (kFetches<Weights, P>) {
        const std::byte* ahead = group + p * stretch.panel_bytes + stretch.ahead;
#pragma GCC unroll 16
        for (size_t line = 0; line < Weights::kGroupBytes; line += kLine) fetch(ahead + line);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) acc[r][p] = Isa::zero_ints();
    }
#pragma GCC unroll 16
    for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 4
      for (int part = 0; part < kVectorDepth / 2; ++part) {
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          const std::byte* at =
              group + p * stretch.panel_bytes + Weights::kIntegers + vector * kLine;
          const typename Isa::Ints pairs = Weights::widen(at, part);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            Isa::add_products(acc[r][p], pairs, values.at(r, vector * kVectorDepth + part * 2));
          }
        }
      }
    }
  }
};

}  // namespace
}  // namespace crossdock::kernels
