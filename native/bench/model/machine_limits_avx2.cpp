// The two loops of machine_limits.cpp at the width of the AVX2 kernels.
#include <immintrin.h>

#include "machine_limits.h"

namespace crossdock::bench {
namespace {

constexpr int kChains = 12;

float fold(__m256 value) {
  float lanes[8];
  _mm256_storeu_ps(lanes, value);
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

float fma_chains_avx2(uint64_t iterations) {
  __m256 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm256_set1_ps(0.5f + static_cast<float>(i));
  const __m256 scale = _mm256_set1_ps(0.999f), add = _mm256_set1_ps(0.001f);
  for (uint64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chains[i] = _mm256_fmadd_ps(chains[i], scale, add);
  }
  __m256 sum = chains[0];
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_ps(sum, chains[i]);
  return fold(sum);
}

float sum_of_avx2(const float* values, size_t count) {
  __m256 sums[4];
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  for (size_t i = 0; i + 32 <= count; i += 32) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm256_add_ps(sums[j], _mm256_loadu_ps(values + i + 8 * j));
    }
  }
  return fold(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
}

}  // namespace crossdock::bench
