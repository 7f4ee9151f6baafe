#include "crossdock/model/kv_convert.h"

#include <cassert>
#include <cstring>

#include "crossdock/kernels/kv_codec.h"

namespace crossdock {
namespace {

void convert_heads(const KvLayout& from, const KvLayout& to, uint32_t layer,
                   const std::byte* source, std::byte* target) {
  const kernels::ElementTypes types{element_type(from.dtype), element_type(to.dtype)};
  for (uint32_t head = 0; head < from.num_rank_heads(); ++head) {
    kernels::convert_k(types, from.head_dim, source + from.k_offset(layer, head),
                       target + to.k_offset(layer, head));
    kernels::convert_v(types, from.head_dim, source + from.v_offset(layer, head),
                       target + to.v_offset(layer, head));
  }
}

void convert_rows(const KvLayout& from, const KvLayout& to, uint32_t layer, const std::byte* source,
                  std::byte* target) {
  const kernels::LatentForm source_form{element_type(from.dtype), from.head_dim, from.rope_dim};
  for (uint32_t slot = 0; slot < kBlockTokens; ++slot) {
    kernels::convert_latent_row(source_form, element_type(to.dtype),
                                source + from.row_offset(layer, slot),
                                target + to.row_offset(layer, slot));
  }
}

}  // namespace

kernels::ElementType element_type(DType dtype) {
  using kernels::ElementType;
  switch (dtype) {
    case DType::kF32: return ElementType::kF32;
    case DType::kBf16: return ElementType::kBf16;
    case DType::kFp8E4m3:
    case DType::kFp8DsMla: return ElementType::kFp8E4m3;
    case DType::kFp8E5m2: return ElementType::kFp8E5m2;
  }
  assert(!"unknown dtype");
  return ElementType::kF32;
}

void convert_layers(const KvLayout& from, const KvLayout& to, LayerRange layers,
                    const std::byte* source, std::byte* target) {
  assert(to.converts_from(from) && layers.begin <= layers.end && layers.end <= from.num_layers);
  if (from.dtype == to.dtype) {
    const size_t first = layers.begin * from.layer_bytes();
    std::memcpy(target + first, source + first, (layers.end - layers.begin) * from.layer_bytes());
    return;
  }
  for (uint32_t layer = layers.begin; layer < layers.end; ++layer) {
    if (from.kind == KvKind::kMla) {
      convert_rows(from, to, layer, source, target);
    } else {
      convert_heads(from, to, layer, source, target);
    }
  }
}

void convert_block(const KvLayout& from, const KvLayout& to, const std::byte* source,
                   std::byte* target) {
  convert_layers(from, to, {0, from.num_layers}, source, target);
}

}  // namespace crossdock
