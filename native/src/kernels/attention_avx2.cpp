// Attention over one block with AVX2 and FMA. Bit-identical to attention_scalar.cpp: the same
// chains, eight of them a register.
#include "avx2_lanes.h"
#include "variants.h"

namespace crossdock::kernels {
namespace {

// FP8 as an element of a block. Moved into the place of an f16's bits, an e4m3 is its value by 2^-8
// and an e5m2 its value.
struct E4m3Bits {
  uint8_t bits;
};
struct E5m2Bits {
  uint8_t bits;
};

// The f16's bits from sign-extended bytes. Adding one to the mantissa of the one NaN carries into
// the exponent's highest bit, which makes it a NaN of f16.
CROSSDOCK_INLINE __m256i as_f16(__m256i extended, const E4m3Bits*) {
  const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(extended, 7),
                                         _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i carried = _mm256_add_epi16(moved, _mm256_set1_epi16(0x80));
  return _mm256_or_si256(moved, _mm256_and_si256(carried, _mm256_set1_epi16(0x4000)));
}

CROSSDOCK_INLINE __m256i as_f16(__m256i extended, const E5m2Bits*) {
  return _mm256_slli_epi16(extended, 8);
}

template <typename W>
constexpr bool kIsFp8 = sizeof(W) == 1;

template <typename W>
  requires kIsFp8<W>
CROSSDOCK_INLINE Pair load_pair(const W* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m256i halves = as_f16(_mm256_cvtepi8_epi16(bytes), p);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

template <typename W>
  requires kIsFp8<W>
CROSSDOCK_INLINE __m256 load(const W* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtph_ps(_mm256_castsi256_si128(as_f16(_mm256_cvtepi8_epi16(bytes), p)));
}

template <typename W>
  requires kIsFp8<W>
CROSSDOCK_INLINE Pair in_order(Pair pair, const W*) {
  return pair;
}
template <typename W>
  requires kIsFp8<W>
CROSSDOCK_INLINE Pair as_loaded(Pair pair, const W*) {
  return pair;
}

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

// A block used by many rows is widened once.
template <typename W>
KvBlock widened(const KvBlock& block, float* scratch) {
  const auto* from = reinterpret_cast<const W*>(block.bytes);
  for (size_t i = 0; i < size_t{block.head_dim} * kBlockSlots; i += 2 * kWidth) {
    const Pair pair = in_order(load_pair(from + i), from);
    _mm256_storeu_ps(scratch + i, pair.first);
    _mm256_storeu_ps(scratch + i + kWidth, pair.second);
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(scratch);
  return {bytes, bytes, ElementType::kF32, block.head_dim};
}

// From how many rows on; FP8 takes more instructions to widen than bf16.
template <typename W>
constexpr uint32_t kRowsWorthWidening = kIsFp8<W> ? 7 : 12;

template <typename W>
void scores_widening(const Scores& job) {
  if (job.num_rows < kRowsWorthWidening<W>) return scores_of<W>(job);
  Scores wide = job;
  wide.k = widened<W>(job.k, job.scratch);
  scores_of<float>(wide);
}

// The scales of eight slots; an e4m3's holds the 2^8 that its elements lack.
CROSSDOCK_INLINE __m256 scales_at(const KvBlock& block, uint32_t slot) {
  const auto* scales =
      reinterpret_cast<const float*>(block.bytes + size_t{block.head_dim} * kBlockSlots);
  const float factor = block.type == ElementType::kFp8E4m3 ? 256.0f : 1.0f;
  return _mm256_mul_ps(load(scales + slot), _mm256_set1_ps(factor));
}

// Rows of 32 slots, times the scales of the block.
void scale_rows(const KvBlock& block, uint32_t num_rows, const float* from, size_t from_stride,
                float* to, size_t to_stride) {
  for (uint32_t slot = 0; slot < kBlockSlots; slot += kWidth) {
    const __m256 scales = scales_at(block, slot);
    for (uint32_t row = 0; row < num_rows; ++row) {
      _mm256_storeu_ps(to + row * to_stride + slot,
                       _mm256_mul_ps(load(from + row * from_stride + slot), scales));
    }
  }
}

void scores(const Scores& job) {
  switch (job.k.type) {
    case ElementType::kF32: return scores_of<float>(job);
    case ElementType::kBf16: return scores_widening<uint16_t>(job);
    case ElementType::kFp8E4m3: scores_widening<E4m3Bits>(job); break;
    case ElementType::kFp8E5m2: scores_widening<E5m2Bits>(job); break;
  }
  scale_rows(job.k, job.num_rows, job.scores, job.scores_stride, job.scores, job.scores_stride);
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

template <typename W>
void weighted_sum_widening(const WeightedSum& job) {
  if (job.num_rows < kRowsWorthWidening<W>) return weighted_sum_of<W>(job);
  WeightedSum wide = job;
  wide.v = widened<W>(job.v, job.scratch);
  weighted_sum_of<float>(wide);
}

void weighted_sum(const WeightedSum& job) {
  if (job.v.type == ElementType::kF32) return weighted_sum_of<float>(job);
  if (job.v.type == ElementType::kBf16) return weighted_sum_widening<uint16_t>(job);
  WeightedSum scaled = job;
  float* p = job.scratch + size_t{job.v.head_dim} * kBlockSlots;
  scale_rows(job.v, job.num_rows, job.p, job.p_stride, p, kBlockSlots);
  scaled.p = p;
  scaled.p_stride = kBlockSlots;
  if (job.v.type == ElementType::kFp8E4m3) return weighted_sum_widening<E4m3Bits>(scaled);
  weighted_sum_widening<E5m2Bits>(scaled);
}

// Eight rows of eight columns, in place.
CROSSDOCK_INLINE void transpose(__m256 (&rows)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// Of the eight latents at `dim`, with the 2^8 that an e4m3 lacks.
CROSSDOCK_INLINE __m256 latent_scale(const LatentRows& rows, const std::byte* row, uint32_t dim) {
  const auto* scales = reinterpret_cast<const float*>(row + rows.scales_offset);
  return _mm256_set1_ps(scales[dim / kLatentGroup] * 256.0f);
}

// num_dims elements of type W of every row, from `offset` on, into keys[dim][slot].
template <typename W>
void transpose_rows(const LatentRows& rows, size_t offset, uint32_t num_dims, float* keys) {
  const std::byte* row = rows.bytes;
  for (uint32_t slot = 0; slot < kBlockSlots; slot += 8, row += 8 * rows.row_bytes) {
    for (uint32_t dim = 0; dim < num_dims; dim += kWidth) {
      __m256 tile[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const std::byte* from = row + i * rows.row_bytes;
        tile[i] = load(reinterpret_cast<const W*>(from + offset) + dim);
        if constexpr (kIsFp8<W>) tile[i] = _mm256_mul_ps(tile[i], latent_scale(rows, from, dim));
      }
      transpose(tile);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        _mm256_storeu_ps(keys + size_t{dim + i} * kBlockSlots + slot, tile[i]);
      }
    }
  }
}

void widen_keys(const LatentRows& rows, float* keys) {
  float* rope_keys = keys + size_t{rows.latent_dim} * kBlockSlots;
  if (rows.type == ElementType::kF32) {
    transpose_rows<float>(rows, 0, rows.latent_dim, keys);
    return transpose_rows<float>(rows, rows.rope_offset, rows.rope_dim, rope_keys);
  }
  if (rows.type == ElementType::kBf16) {
    transpose_rows<uint16_t>(rows, 0, rows.latent_dim, keys);
  } else {
    transpose_rows<E4m3Bits>(rows, 0, rows.latent_dim, keys);
  }
  transpose_rows<uint16_t>(rows, rows.rope_offset, rows.rope_dim, rope_keys);
}

template <typename W>
void widen_latents(const LatentRows& rows, float* values) {
  const std::byte* row = rows.bytes;
  for (uint32_t slot = 0; slot < kBlockSlots; ++slot, row += rows.row_bytes) {
    for (uint32_t dim = 0; dim < rows.latent_dim; dim += kWidth, values += kWidth) {
      __m256 value = load(reinterpret_cast<const W*>(row) + dim);
      if constexpr (kIsFp8<W>) value = _mm256_mul_ps(value, latent_scale(rows, row, dim));
      _mm256_storeu_ps(values, value);
    }
  }
}

void widen_values(const LatentRows& rows, float* values) {
  switch (rows.type) {
    case ElementType::kF32: return widen_latents<float>(rows, values);
    case ElementType::kBf16: return widen_latents<uint16_t>(rows, values);
    default: return widen_latents<E4m3Bits>(rows, values);
  }
}

}  // namespace

const AttentionKernels kAttentionAvx2{scores, softmax, weighted_sum, widen_keys, widen_values};

}  // namespace crossdock::kernels
