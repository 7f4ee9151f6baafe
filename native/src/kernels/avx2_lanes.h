// Eight lanes of AVX2 and FMA: what the avx2 variants of product and attention share.
//
// Included only by files compiled with those flags. Everything here is in an anonymous namespace,
// so that no copy of it is shared with a file of other flags.
#pragma once

#include <immintrin.h>

#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

inline __attribute__((always_inline)) __m256 exp_ps(__m256 x) {
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

inline __attribute__((always_inline)) __m256 silu_ps(__m256 x) {
  const __m256 negated = _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), exp_ps(negated)));
}

}  // namespace
}  // namespace crossdock::kernels
