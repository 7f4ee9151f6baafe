// Rows of latent attention as f32. Included by files of AVX2's flags or wider ones, as
// attention_lanes.h is.
#pragma once

#include "attention_chains.h"

namespace crossdock::kernels {
namespace {

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

// Eight elements at `dim` of a part of a row, the latents of FP8 times their scale.
template <typename Elements>
CROSSDOCK_INLINE __m256 latent_values(const LatentRows& rows, const std::byte* row, size_t offset,
                                      uint32_t dim) {
  const auto value =
      Elements::one(reinterpret_cast<const typename Elements::Type*>(row + offset) + dim);
  if constexpr (!kIsFp8<Elements>) return value;
  const auto* scales = reinterpret_cast<const float*>(row + rows.scales_offset);
  return _mm256_mul_ps(_mm256_mul_ps(value, _mm256_set1_ps(0x1p120f)),
                       _mm256_set1_ps(scales[dim / kLatentGroup]));
}

// num_dims elements of every row, from `offset` on, into keys[dim][slot].
template <typename Elements>
void transpose_rows(const LatentRows& rows, size_t offset, uint32_t num_dims, float* keys) {
  const std::byte* row = rows.bytes;
  for (uint32_t slot = 0; slot < kSlots; slot += 8, row += 8 * rows.row_bytes) {
    for (uint32_t dim = 0; dim < num_dims; dim += 8) {
      __m256 tile[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        tile[i] = latent_values<Elements>(rows, row + i * rows.row_bytes, offset, dim);
      }
      transpose(tile);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        _mm256_storeu_ps(keys + size_t{dim + i} * kSlots + slot, tile[i]);
      }
    }
  }
}

void widen_keys(const LatentRows& rows, float* keys) {
  float* rope_keys = keys + size_t{rows.latent_dim} * kSlots;
  if (rows.type == ElementType::kF32) {
    transpose_rows<Lanes8::F32>(rows, 0, rows.latent_dim, keys);
    return transpose_rows<Lanes8::F32>(rows, rows.rope_offset, rows.rope_dim, rope_keys);
  }
  if (rows.type == ElementType::kBf16) {
    transpose_rows<Lanes8::Bf16>(rows, 0, rows.latent_dim, keys);
  } else {
    transpose_rows<Lanes8::E4m3>(rows, 0, rows.latent_dim, keys);
  }
  transpose_rows<Lanes8::Bf16>(rows, rows.rope_offset, rows.rope_dim, rope_keys);
}

template <typename Elements>
void widen_latents(const LatentRows& rows, float* values) {
  const std::byte* row = rows.bytes;
  for (uint32_t slot = 0; slot < kSlots; ++slot, row += rows.row_bytes) {
    for (uint32_t dim = 0; dim < rows.latent_dim; dim += 8, values += 8) {
      _mm256_storeu_ps(values, latent_values<Elements>(rows, row, 0, dim));
    }
  }
}

void widen_values(const LatentRows& rows, float* values) {
  switch (rows.type) {
    case ElementType::kF32: return widen_latents<Lanes8::F32>(rows, values);
    case ElementType::kBf16: return widen_latents<Lanes8::Bf16>(rows, values);
    default: return widen_latents<Lanes8::E4m3>(rows, values);
  }
}

}  // namespace
}  // namespace crossdock::kernels
