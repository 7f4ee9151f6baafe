// How K and V are written into blocks and taken out of them, for every element type.
//
//   GQA  K as [dim][slot] and V as [slot][dim]; behind them, for FP8, one f32 scale a slot.
//   MLA  one row a slot: the latent, then the rotated part. As kFp8E4m3 this is fp8_ds_mla: latent
//        codes, one f32 scale per 128 of them, the rotated part in bf16.
//
// A scale is max|x| / the format's largest, at least the smallest normal f32; 0 for zeros alone,
// NaN (and every code zero) when a NaN or an infinity is among the values. So the codes of NaN and
// of infinity are never written, and zeros are zero bytes. Read back, a value x is off by at most
// |x| / 16 (e4m3) or |x| / 8 (e5m2), or by half the smallest subnormal times the scale (2^-10,
// 2^-17), whichever is more, and a rounding of f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossdock/kernels/block_attention.h"

namespace crossdock::kernels {

// Writes one token's K of one head into a block.
void store_k(const float* k, uint32_t head_dim, uint32_t slot, ElementType type,
             std::byte* k_block);
// Writes one token's V of one head into a block.
void store_v(const float* v, uint32_t head_dim, uint32_t slot, ElementType type,
             std::byte* v_block);
// Writes one token's row.
void store_latent_row(const float* latent, const float* rope, const LatentForm& form,
                      std::byte* row);

// Elements of another type, encoded again under that type's own rule.
struct ElementTypes {
  ElementType from;
  ElementType to;
};
void convert_k(ElementTypes types, uint32_t head_dim, const std::byte* from, std::byte* to);
void convert_v(ElementTypes types, uint32_t head_dim, const std::byte* from, std::byte* to);
void convert_latent_row(const LatentForm& form, ElementType to_type, const std::byte* from,
                        std::byte* to);

}  // namespace crossdock::kernels
