// Eight lanes of AVX2 and FMA: what the avx2 variants of product and attention share.
//
// Included only by files compiled with those flags. Everything here is in an anonymous namespace,
// so that no copy of it is shared with a file of other flags.
#pragma once

#include <immintrin.h>

#include "crossdock/kernels/kernels.h"
#include "crossdock/kernels/math.h"

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

}  // namespace
}  // namespace crossdock::kernels
