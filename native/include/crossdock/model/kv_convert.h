// Makes a block of one KV dtype from a block of another. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "crossdock/blocks/kv_layout.h"
#include "crossdock/kernels/block_attention.h"

namespace crossdock {

// What the kernels call the elements of a dtype; fp8_ds_mla's latents are e4m3.
kernels::ElementType element_type(DType dtype);

struct LayerRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// `to` must convert from `from`. Every element is decoded and encoded anew with the target's own
// scales; under one dtype the bytes are copied. `source` and `target` are whole blocks, and bytes
// outside the layers, those between block_bytes() and stride_bytes() too, are left alone.
void convert_layers(const KvLayout& from, const KvLayout& to, LayerRange layers,
                    const std::byte* source, std::byte* target);
// All layers.
void convert_block(const KvLayout& from, const KvLayout& to, const std::byte* source,
                   std::byte* target);

}  // namespace crossdock
