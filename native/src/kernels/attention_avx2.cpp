// Attention over one block with AVX2 and FMA. Bit-identical to attention_scalar.cpp: the same
// chains, eight of them a register.
#include "avx2_lanes.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

// Decode has few rows and streams K and V from memory: the next block is fetched meanwhile. More
// rows find the block in the cache.
template <int R>
constexpr Fetch kBlockFetch = R <= 3 ? Fetch::kAhead : Fetch::kNothing;

template <typename W>
CROSSDOCK_INLINE ptrdiff_t ahead_of(const KvBlock& block) {
  return (block.next - block.bytes) / static_cast<ptrdiff_t>(sizeof(W));
}

template <int R, int C, typename W>
CROSSDOCK_INLINE void score_tile(const Scores& job, uint32_t row, uint32_t slot) {
  const uint32_t head_dim = job.k.head_dim;
  __m256 acc[R][C];
  clear(acc);
  const Columns<W> b{reinterpret_cast<const W*>(job.k.bytes) + slot, kBlockSlots, 2 * kWidth,
                     ahead_of<W>(job.k)};
  accumulate<kBlockFetch<R>>(acc, job.q + size_t{row} * head_dim, head_dim, b, head_dim);
  store<W>(acc, job.scores + row * job.scores_stride + slot, job.scores_stride);
}

template <typename W>
void scores_of(const Scores& job) {
  uint32_t row = 0;
  for (; row + kRows <= job.num_rows; row += kRows) {
    score_tile<6, 2, W>(job, row, 0);
    score_tile<6, 2, W>(job, row, 2 * kWidth);
  }
  for (; row + 3 <= job.num_rows; row += 3) score_tile<3, 4, W>(job, row, 0);
  if (row + 2 == job.num_rows) score_tile<2, 4, W>(job, row, 0);
  if (row + 1 == job.num_rows) score_tile<1, 4, W>(job, row, 0);
}

// A bf16 block used by many rows is widened once.
KvBlock widened(const KvBlock& block, float* scratch) {
  const auto* from = reinterpret_cast<const uint16_t*>(block.bytes);
  for (size_t i = 0; i < size_t{block.head_dim} * kBlockSlots; i += kWidth) {
    _mm256_storeu_ps(scratch + i, load(from + i));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(scratch);
  return {bytes, bytes, ElementType::kF32, block.head_dim};
}

constexpr uint32_t kQueriesWorthWidening = 12;

void scores(const Scores& job) {
  if (job.k.type == ElementType::kF32) return scores_of<float>(job);
  if (job.num_rows < kQueriesWorthWidening) return scores_of<uint16_t>(job);
  Scores wide = job;
  wide.k = widened(job.k, job.scratch);
  scores_of<float>(wide);
}

void softmax(float* scores, uint32_t num_slots, float* max, float* sum) {
  const uint32_t padded = (num_slots + kBlockSlots - 1) / kBlockSlots * kBlockSlots;
  for (uint32_t slot = num_slots; slot < padded; ++slot) scores[slot] = -__builtin_inff();
  __m256 low = _mm256_set1_ps(-__builtin_inff()), high = low;
  for (uint32_t slot = 0; slot < padded; slot += 2 * kWidth) {
    low = _mm256_max_ps(low, _mm256_loadu_ps(scores + slot));
    high = _mm256_max_ps(high, _mm256_loadu_ps(scores + slot + kWidth));
  }
  low = _mm256_max_ps(low, high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  four = _mm_max_ss(four, _mm_shuffle_ps(four, four, 1));
  *max = _mm_cvtss_f32(four);
  const __m256 top = _mm256_set1_ps(*max);
  low = high = _mm256_setzero_ps();
  for (uint32_t slot = 0; slot < padded; slot += 2 * kWidth) {
    const __m256 a = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + slot), top));
    const __m256 b = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + slot + kWidth), top));
    _mm256_storeu_ps(scores + slot, a);
    _mm256_storeu_ps(scores + slot + kWidth, b);
    low = _mm256_add_ps(low, a);
    high = _mm256_add_ps(high, b);
  }
  low = _mm256_add_ps(low, high);
  four = _mm_add_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  four = _mm_add_ss(four, _mm_shuffle_ps(four, four, 1));
  *sum = _mm_cvtss_f32(four);
}

template <int R, int C, typename W>
CROSSDOCK_INLINE void value_tile(const WeightedSum& job, uint32_t row, uint32_t dim) {
  const uint32_t head_dim = job.v.head_dim;
  float* values = job.values + size_t{row} * head_dim + dim;
  __m256 acc[R][C];
  fetch<W>(acc, values, head_dim);
  const W* v = reinterpret_cast<const W*>(job.v.bytes) + size_t{job.slot_begin} * head_dim + dim;
  const Columns<W> b{v, head_dim, 2 * kWidth, ahead_of<W>(job.v)};
  accumulate<kBlockFetch<R>>(acc, job.p + row * job.p_stride + job.slot_begin, job.p_stride, b,
                             job.slot_end - job.slot_begin);
  store<W>(acc, values, head_dim);
}

// All dimensions of R rows, the widest tiles first. C: registers that fit beside R rows.
template <int R, int C, typename W>
CROSSDOCK_INLINE void value_rows(const WeightedSum& job, uint32_t row) {
  const uint32_t head_dim = job.v.head_dim;
  uint32_t dim = 0;
  for (; dim + C * kWidth <= head_dim; dim += C * kWidth) value_tile<R, C, W>(job, row, dim);
  if constexpr (C > 2) {
    for (; dim + 2 * kWidth <= head_dim; dim += 2 * kWidth) value_tile<R, 2, W>(job, row, dim);
  }
  if (dim < head_dim) value_tile<R, 1, W>(job, row, dim);
}

template <typename W>
void weighted_sum_of(const WeightedSum& job) {
  uint32_t row = 0;
  for (; row + kRows <= job.num_rows; row += kRows) value_rows<6, 2, W>(job, row);
  for (; row + 3 <= job.num_rows; row += 3) value_rows<3, 4, W>(job, row);
  if (row + 2 == job.num_rows) value_rows<2, 4, W>(job, row);
  if (row + 1 == job.num_rows) value_rows<1, 8, W>(job, row);
}

void weighted_sum(const WeightedSum& job) {
  if (job.v.type == ElementType::kF32) return weighted_sum_of<float>(job);
  if (job.num_rows < kQueriesWorthWidening) return weighted_sum_of<uint16_t>(job);
  WeightedSum wide = job;
  wide.v = widened(job.v, job.scratch);
  weighted_sum_of<float>(wide);
}

}  // namespace

const AttentionKernels kAttentionAvx2{scores, softmax, weighted_sum};

}  // namespace crossdock::kernels
