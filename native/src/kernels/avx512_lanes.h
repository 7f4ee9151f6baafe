// Sixteen lanes of AVX-512: what the avx512 variants of product and attention share.
//
// Included only by files compiled with those flags. Everything here is in an anonymous namespace,
// so that no copy of it is shared with a file of other flags.
#pragma once

#include <immintrin.h>

#include "crossdock/kernels/math.h"

namespace crossdock::kernels {
namespace {

inline __attribute__((always_inline)) __m512 exp_ps(__m512 x) {
  const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpMin), _CMP_NLT_UQ);
  // The second operand of min is what comes back for a NaN.
  const __m512 clamped = _mm512_min_ps(_mm512_set1_ps(kExpMax), x);
  const __m512 magic = _mm512_set1_ps(kRoundingMagic);
  const __m512 shifted = _mm512_fmadd_ps(clamped, _mm512_set1_ps(kLog2E), magic);
  const __m512 n = _mm512_sub_ps(shifted, magic);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), clamped);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
  __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(kExp6), _mm512_set1_ps(kExp5));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(kExp4));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(kExp3));
  p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(kExp2));
  p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
  p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
  const __m512i exponent =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(keep, p, _mm512_castsi512_ps(exponent));
}

inline __attribute__((always_inline)) __m512 silu_ps(__m512 x) {
  const __m512 negated = _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp_ps(negated)));
}

}  // namespace
}  // namespace crossdock::kernels
