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

constexpr uint32_t kWidth = 8;

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

}  // namespace
}  // namespace crossdock::kernels
