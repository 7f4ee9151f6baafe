// Attention over one block, for the instructions of a variant, `Isa`: registers of `kWidth` floats,
// and for each element type how they are filled (attention_lanes.h). The chains are those of
// attention_scalar.cpp.
//
// Included only by files compiled with the variant's flags. Everything here is in an anonymous
// namespace, so that no copy of it is shared with a file of other flags.
#pragma once

#include <immintrin.h>

#include "attention_lanes.h"
#include "crossdock/kernels/block_attention.h"

namespace crossdock::kernels {
namespace {

constexpr uint32_t kSlots = 32;  // of a block

// A tile is a function of its own: together they would be one too large for a sanitizer's compiler.
#define CROSSDOCK_TILE __attribute__((noinline))

template <typename Elements>
constexpr bool kIsFp8 = sizeof(typename Elements::Type) == 1;

// B: rows of columns, `stride` apart. What lies `ahead` of each element is wanted next.
template <typename Elements>
struct Columns {
  const typename Elements::Type* base;
  size_t stride;
  ptrdiff_t ahead;
};

template <typename Elements>
CROSSDOCK_INLINE Columns<Elements> columns_of(const KvBlock& block, size_t first, size_t stride) {
  using Type = typename Elements::Type;
  return {reinterpret_cast<const Type*>(block.bytes) + first, stride,
          (block.next - block.bytes) / static_cast<ptrdiff_t>(sizeof(Type))};
}

// acc[r][c] continues its chain over a[r][0..count) * b[0..count)[c]. With few rows K and V stream
// from memory, so what is wanted next is fetched meanwhile, into the second level: the first has
// too few misses in flight to keep the memory busy (measured: 12 GB/s a core against 19 over blocks
// of 8 KiB). More rows find the block in the cache.
template <typename Isa, typename Elements, int R, int C>
CROSSDOCK_INLINE void accumulate(typename Isa::Floats (&acc)[R][C], const float* a, size_t a_stride,
                                 const Columns<Elements>& columns, uint32_t count) {
  constexpr int kPerLine = 64 / (Isa::kWidth * sizeof(typename Elements::Type));
  const typename Elements::Type* b = columns.base;
  for (uint32_t k = 0; k < count; ++k, b += columns.stride) {
    if constexpr (R <= Isa::kStreamingRows) {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += kPerLine) {
        _mm_prefetch(reinterpret_cast<const char*>(b + c * Isa::kWidth + columns.ahead),
                     _MM_HINT_T1);
      }
    }
    if constexpr (C == 1) {
      const auto column = Elements::one(b);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        acc[r][0] = Isa::fma(Isa::broadcast(a + r * a_stride + k), column, acc[r][0]);
      }
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < C; c += 2) {
        const auto two = Elements::template pair<C>(b, c / 2);
        // Each pair loads the values of A again: kept in registers across pairs, they would push
        // accumulators out to the stack (measured: half the speed).
        const float* values = a + k;
        asm volatile("" : "+r"(values));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const auto value = Isa::broadcast(values + r * a_stride);
          acc[r][c] = Isa::fma(value, two.first, acc[r][c]);
          acc[r][c + 1] = Isa::fma(value, two.second, acc[r][c + 1]);
        }
      }
    }
  }
}

template <typename Isa, int R, int C>
CROSSDOCK_INLINE void store_rows(const typename Isa::Floats (&acc)[R][C], float* to,
                                 size_t stride) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) Isa::store(to + r * stride + c * Isa::kWidth, acc[r][c]);
  }
}

template <typename Isa, typename Elements, int R, int C>
CROSSDOCK_TILE void score_tile(const Scores& job, uint32_t row, uint32_t slot) {
  const uint32_t head_dim = job.k.head_dim;
  typename Isa::Floats acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = Isa::zero();
  }
  accumulate<Isa>(acc, job.q + size_t{row} * head_dim, head_dim,
                  columns_of<Elements>(job.k, slot, kSlots), head_dim);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) Elements::in_order(acc[r]);
  store_rows<Isa>(acc, job.scores + row * job.scores_stride + slot, job.scores_stride);
}

// All slots of a group of rows.
template <typename Isa, typename Elements>
struct ScoreRows {
  const Scores& job;

  template <int R>
  CROSSDOCK_INLINE void rows(uint32_t row) const {
    constexpr int kColumns = Isa::score_columns(R);
    for (uint32_t slot = 0; slot < kSlots; slot += kColumns * Isa::kWidth) {
      score_tile<Isa, Elements, R, kColumns>(job, row, slot);
    }
  }
};

template <typename Isa, typename Elements, int R, int C>
CROSSDOCK_TILE void value_tile(const WeightedSum& job, uint32_t row, uint32_t dim) {
  const uint32_t head_dim = job.v.head_dim;
  float* values = job.values + size_t{row} * head_dim + dim;
  typename Isa::Floats acc[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      acc[r][c] = Isa::load(values + size_t{head_dim} * r + c * Isa::kWidth);
    }
    Elements::as_loaded(acc[r]);
  }
  accumulate<Isa>(acc, job.p + row * job.p_stride + job.slot_begin, job.p_stride,
                  columns_of<Elements>(job.v, size_t{job.slot_begin} * head_dim + dim, head_dim),
                  job.slot_end - job.slot_begin);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) Elements::in_order(acc[r]);
  store_rows<Isa>(acc, values, head_dim);
}

// All dimensions of a group of rows, the widest tiles first.
template <typename Isa, typename Elements>
struct ValueRows {
  const WeightedSum& job;

  template <int R>
  CROSSDOCK_INLINE void rows(uint32_t row) const {
    constexpr int kColumns = Isa::value_columns(R);
    uint32_t dim = tiles<R, kColumns>(row, 0);
    if constexpr (kColumns > 4) dim = tiles<R, 4>(row, dim);
    if constexpr (kColumns > 2) dim = tiles<R, 2>(row, dim);
    dim = tiles<R, 1>(row, dim);
    if constexpr (Isa::kWidth > 8) Isa::template last_values<Elements, R>(job, row, dim);
  }

 private:
  template <int R, int C>
  CROSSDOCK_INLINE uint32_t tiles(uint32_t row, uint32_t dim) const {
    for (; dim + C * Isa::kWidth <= job.v.head_dim; dim += C * Isa::kWidth) {
      value_tile<Isa, Elements, R, C>(job, row, dim);
    }
    return dim;
  }
};

// num_rows rows in groups of the sizes that `Isa` has kernels for, the largest first.
template <typename Tile, int R, int... Smaller>
CROSSDOCK_INLINE void for_groups(const Tile& tile, uint32_t row, uint32_t num_rows) {
  for (; row + R <= num_rows; row += R) tile.template rows<R>(row);
  if constexpr (sizeof...(Smaller) > 0) for_groups<Tile, Smaller...>(tile, row, num_rows);
}

// A block used by many rows is widened once.
template <typename Isa, typename Elements>
KvBlock widened(const KvBlock& block, float* scratch) {
  const auto* from = columns_of<Elements>(block, 0, 0).base;
  // 32 slots times a multiple of 8 dims are whole fours of registers.
  constexpr int kStep = 4 * Isa::kWidth;
  for (size_t i = 0; i < size_t{block.head_dim} * kSlots; i += kStep) {
    typename Isa::Floats columns[4];
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      const auto two = Elements::template pair<4>(from + i, pair);
      columns[2 * pair] = two.first;
      columns[2 * pair + 1] = two.second;
    }
    Elements::in_order(columns);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) Isa::store(scratch + i + c * Isa::kWidth, columns[c]);
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(scratch);
  return {bytes, bytes, ElementType::kF32, block.head_dim};
}

template <typename Isa, typename Elements>
constexpr bool worth_widening(uint32_t num_rows) {
  // FP8 takes more instructions than bf16: more than one group of rows is enough.
  return sizeof(typename Elements::Type) < 4 &&
         num_rows > static_cast<uint32_t>(kIsFp8<Elements> ? Isa::kRows : 2 * Isa::kRows - 1);
}

template <typename Isa, typename Elements>
void scores_of(const Scores& job) {
  if (worth_widening<Isa, Elements>(job.num_rows)) {
    Scores wide = job;
    wide.k = widened<Isa, Elements>(job.k, job.scratch);
    return scores_of<Isa, typename Isa::F32>(wide);
  }
  Isa::for_rows(ScoreRows<Isa, Elements>{job}, job.num_rows);
}

template <typename Isa, typename Elements>
void weighted_sum_of(const WeightedSum& job) {
  if (worth_widening<Isa, Elements>(job.num_rows)) {
    WeightedSum wide = job;
    wide.v = widened<Isa, Elements>(job.v, job.scratch);
    return weighted_sum_of<Isa, typename Isa::F32>(wide);
  }
  Isa::for_rows(ValueRows<Isa, Elements>{job}, job.num_rows);
}

// Rows of 32 slots.
struct SlotRows {
  const float* from;
  size_t from_stride;
  float* to;
  size_t to_stride;
  uint32_t num_rows;
};

// Times the scales of the block, and `factor`.
template <typename Isa>
void scale_rows(const KvBlock& block, float factor, const SlotRows& rows) {
  const auto* scales =
      reinterpret_cast<const float*>(block.bytes + size_t{block.head_dim} * kSlots);
  for (uint32_t slot = 0; slot < kSlots; slot += Isa::kWidth) {
    const auto* next = reinterpret_cast<const char*>(scales + slot) + (block.next - block.bytes);
    _mm_prefetch(next, _MM_HINT_T1);
    const auto scale = Isa::multiply(Isa::load(scales + slot), Isa::broadcast(&factor));
    for (uint32_t row = 0; row < rows.num_rows; ++row) {
      const auto value = Isa::load(rows.from + row * rows.from_stride + slot);
      Isa::store(rows.to + row * rows.to_stride + slot, Isa::multiply(value, scale));
    }
  }
}

template <typename Isa>
void scores(const Scores& job) {
  const SlotRows rows{job.scores, job.scores_stride, job.scores, job.scores_stride, job.num_rows};
  switch (job.k.type) {
    case ElementType::kF32: return scores_of<Isa, typename Isa::F32>(job);
    case ElementType::kBf16: return scores_of<Isa, typename Isa::Bf16>(job);
    case ElementType::kFp8E4m3:
      scores_of<Isa, typename Isa::E4m3>(job);
      return scale_rows<Isa>(job.k, kE4m3Rest, rows);
    case ElementType::kFp8E5m2:
      scores_of<Isa, typename Isa::E5m2>(job);
      return scale_rows<Isa>(job.k, kE5m2Rest, rows);
  }
}

template <typename Isa>
void weighted_sum(const WeightedSum& job) {
  if (job.v.type == ElementType::kF32) return weighted_sum_of<Isa, typename Isa::F32>(job);
  if (job.v.type == ElementType::kBf16) return weighted_sum_of<Isa, typename Isa::Bf16>(job);
  WeightedSum scaled = job;
  float* p = job.scratch + size_t{job.v.head_dim} * kSlots;
  scale_rows<Isa>(job.v, kFp8Lift, {job.p, job.p_stride, p, kSlots, job.num_rows});
  scaled.p = p;
  scaled.p_stride = kSlots;
  if (job.v.type == ElementType::kFp8E4m3) return weighted_sum_of<Isa, typename Isa::E4m3>(scaled);
  weighted_sum_of<Isa, typename Isa::E5m2>(scaled);
}

// The largest of eight, and their sum, folded in halves.
CROSSDOCK_INLINE float fold_max(__m256 lanes) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

CROSSDOCK_INLINE float fold_sum(__m256 lanes) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

}  // namespace
}  // namespace crossdock::kernels
