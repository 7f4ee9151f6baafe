// Attention over one block with AVX2 and FMA. Bit-identical to attention_scalar.cpp: the same
// chains, eight of them a register.
#include "attention_chains.h"
#include "attention_latent.h"
#include "avx2_lanes.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

// 6 rows x 2 columns: 12 accumulators of the 16 registers.
struct Avx2 : Lanes8 {
  static constexpr int kRows = 6;
  static constexpr int score_columns(int rows) { return rows > 3 ? 2 : 4; }
  static constexpr int value_columns(int rows) { return rows > 3 ? 2 : rows > 1 ? 4 : 8; }
  template <typename Tile>
  static CROSSDOCK_INLINE void for_rows(const Tile& tile, uint32_t num_rows) {
    for_groups<Tile, 6, 3, 2, 1>(tile, 0, num_rows);
  }
};

void softmax(float* scores, uint32_t num_slots, float* max, float* sum) {
  const uint32_t padded = (num_slots + kSlots - 1) / kSlots * kSlots;
  for (uint32_t slot = num_slots; slot < padded; ++slot) scores[slot] = -__builtin_inff();
  __m256 low = _mm256_set1_ps(-__builtin_inff()), high = low;
  for (uint32_t slot = 0; slot < padded; slot += 2 * Avx2::kWidth) {
    low = _mm256_max_ps(low, _mm256_loadu_ps(scores + slot));
    high = _mm256_max_ps(high, _mm256_loadu_ps(scores + slot + Avx2::kWidth));
  }
  low = _mm256_max_ps(low, high);
  *max = fold_max(low);
  const __m256 top = _mm256_set1_ps(*max);
  low = high = _mm256_setzero_ps();
  for (uint32_t slot = 0; slot < padded; slot += 2 * Avx2::kWidth) {
    const __m256 a = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + slot), top));
    const __m256 b = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + slot + Avx2::kWidth), top));
    _mm256_storeu_ps(scores + slot, a);
    _mm256_storeu_ps(scores + slot + Avx2::kWidth, b);
    low = _mm256_add_ps(low, a);
    high = _mm256_add_ps(high, b);
  }
  low = _mm256_add_ps(low, high);
  *sum = fold_sum(low);
}

}  // namespace

const AttentionKernels kAttentionAvx2{scores<Avx2>, softmax, weighted_sum<Avx2>, widen_keys,
                                      widen_values};

}  // namespace crossdock::kernels
