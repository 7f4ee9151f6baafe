// The loops of machine_limits.h at the width of the AVX-512 kernels.
#include <immintrin.h>

#include "machine_limits.h"

namespace crossdock::bench {
namespace {

constexpr int kChains = 16;

float fold(__m512 value) {
  float lanes[16];
  _mm512_storeu_ps(lanes, value);
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

float fma_chains(uint64_t iterations) {
  __m512 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_ps(0.5f + static_cast<float>(i));
  const __m512 scale = _mm512_set1_ps(0.999f), add = _mm512_set1_ps(0.001f);
  for (uint64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_fmadd_ps(chains[i], scale, add);
  }
  __m512 sum = chains[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, chains[i]);
  return fold(sum);
}

int32_t madd_chains(uint64_t iterations) {
  __m512i chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_epi32(i + 1);
  const __m512i left = _mm512_set1_epi16(3), right = _mm512_set1_epi16(5);
  for (uint64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_dpwssd_epi32(chains[i], left, right);
  }
  __m512i sum = chains[0];
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_epi32(sum, chains[i]);
  int32_t lanes[16];
  _mm512_storeu_si512(lanes, sum);
  return lanes[0] ^ lanes[15];
}

float sum_of(const float* values, size_t count) {
  __m512 sums[4];
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (size_t i = 0; i + 64 <= count; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(values + i + 16 * j));
    }
  }
  return fold(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

}  // namespace

const PeakLoops kPeakAvx512 = {fma_chains, kChains * 16 * 2.0, madd_chains, kChains * 32 * 2.0,
                               sum_of};

}  // namespace crossdock::bench
