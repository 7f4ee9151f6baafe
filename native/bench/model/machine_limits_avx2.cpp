// The loops of machine_limits.h at the width of the AVX2 kernels.
#include <immintrin.h>

#include "machine_limits.h"

namespace crossdock::bench {
namespace {

// Enough to hide the latency of an fma on two ports, and few enough for 16 registers.
constexpr int kChains = 12;
// An addition ends each link of a chain here, so fewer do, and its product takes a register.
constexpr int kMaddChains = 8;

float fold(__m256 value) {
  float lanes[8];
  _mm256_storeu_ps(lanes, value);
  float sum = 0.0f;
  for (const float lane : lanes) sum += lane;
  return sum;
}

float fma_chains(uint64_t iterations) {
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

int32_t madd_chains(uint64_t iterations) {
  __m256i chains[kMaddChains];
  for (int i = 0; i < kMaddChains; ++i) chains[i] = _mm256_set1_epi32(i + 1);
  const __m256i factor = _mm256_set1_epi16(3);
  for (uint64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 8
    for (int i = 0; i < kMaddChains; ++i) {
      // The factor is mixed with the chain so that the product cannot leave the loop.
      const __m256i product = _mm256_madd_epi16(chains[i], factor);
      chains[i] = _mm256_add_epi32(chains[i], product);
    }
  }
  __m256i sum = chains[0];
  for (int i = 1; i < kMaddChains; ++i) sum = _mm256_add_epi32(sum, chains[i]);
  return _mm256_extract_epi32(sum, 0) ^ _mm256_extract_epi32(sum, 7);
}

float sum_of(const float* values, size_t count) {
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

}  // namespace

const PeakLoops kPeakAvx2 = {fma_chains, kChains * 8 * 2.0, madd_chains, kMaddChains * 16 * 2.0,
                             sum_of};

}  // namespace crossdock::bench
