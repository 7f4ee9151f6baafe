#include "crossdock/blocks/kv_layout.h"

#include <sodium.h>

#include <cassert>
#include <cstring>
#include <string_view>

#include "crossdock/sys/wire.h"

namespace crossdock {
namespace {

// Each field is (tag, length, bytes): two layouts never share an encoding by shifting bytes from
// one field into the next.
enum class FieldTag : uint8_t {
  kVersion = 1,
  kModel = 2,
  kNumLayers = 3,
  kNumKvHeads = 4,
  kHeadDim = 5,
  kDType = 6,
  kBlockTokens = 7,
  kTensorParallelRank = 8,
  kTensorParallelSize = 9,
  kKind = 10,
  kRopeDim = 11,
};

void put_field(WireWriter& writer, FieldTag tag, uint32_t value) {
  writer.put(tag);
  writer.put(static_cast<uint32_t>(sizeof(value)));
  writer.put(value);
}

std::string to_hex(const Fingerprint& fingerprint) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * fingerprint.size());
  for (const uint8_t byte : fingerprint) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Slots [begin, kBlockTokens) of elements that lie as [row][slot].
void zero_columns(std::byte* first, size_t num_rows, size_t element_bytes, uint32_t begin) {
  for (size_t row = 0; row < num_rows; ++row) {
    std::memset(first + (row * kBlockTokens + begin) * element_bytes, 0,
                (kBlockTokens - begin) * element_bytes);
  }
}

}  // namespace

size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 4;
    case DType::kBf16: return 2;
    case DType::kFp8E4m3:
    case DType::kFp8E5m2:
    case DType::kFp8DsMla: return 1;
  }
  assert(!"unknown dtype");
  return 0;
}

std::string name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBf16: return "bf16";
    case DType::kFp8E4m3: return "fp8_e4m3";
    case DType::kFp8E5m2: return "fp8_e5m2";
    case DType::kFp8DsMla: return "fp8_ds_mla";
  }
  assert(!"unknown dtype");
  return {};
}

Status KvLayout::validate() const {
  const bool mla = kind == KvKind::kMla;
  const bool known = mla ? !is_scaled() : dtype != DType::kFp8DsMla;
  if (!known) {
    return {StatusCode::kInvalidArgument,
            "kv_dtype: " + name(dtype) + " does not suit this model; " +
                (mla ? "its latent attention takes f32, bf16 or fp8_ds_mla"
                     : "it takes f32, bf16, fp8_e4m3 or fp8_e5m2")};
  }
  if (dtype == DType::kFp8DsMla && head_dim % kLatentScaleGroup != 0) {
    return {StatusCode::kInvalidArgument,
            "kv_dtype: fp8_ds_mla needs a kv_lora_rank that is a "
            "multiple of 128, not " +
                std::to_string(head_dim)};
  }
  if (tensor_parallel_size == 0 || tensor_parallel_rank >= tensor_parallel_size) {
    return {StatusCode::kInvalidArgument,
            "tensor_parallel_rank: must be below tensor_parallel_size, " +
                std::to_string(tensor_parallel_size) + ", not " +
                std::to_string(tensor_parallel_rank)};
  }
  if (num_kv_heads == 0 ||
      (num_kv_heads % tensor_parallel_size != 0 && tensor_parallel_size % num_kv_heads != 0)) {
    return {StatusCode::kInvalidArgument,
            "tensor_parallel_size: " + std::to_string(tensor_parallel_size) + " and the model's " +
                std::to_string(num_kv_heads) + " KV heads: neither divides the other"};
  }
  return {};
}

bool KvLayout::converts_from(const KvLayout& other) const {
  KvLayout same = other;
  same.dtype = dtype;
  return same == *this;
}

Fingerprint KvLayout::fingerprint() const {
  WireWriter fields;
  put_field(fields, FieldTag::kVersion, kKvLayoutVersion);
  fields.put(FieldTag::kModel);
  fields.put(static_cast<uint32_t>(model.size()));
  fields.put_raw(std::as_bytes(std::span(model)));
  put_field(fields, FieldTag::kNumLayers, num_layers);
  put_field(fields, FieldTag::kNumKvHeads, num_kv_heads);
  put_field(fields, FieldTag::kHeadDim, head_dim);
  put_field(fields, FieldTag::kDType, static_cast<uint32_t>(dtype));
  put_field(fields, FieldTag::kBlockTokens, kBlockTokens);
  put_field(fields, FieldTag::kTensorParallelRank, tensor_parallel_rank);
  put_field(fields, FieldTag::kTensorParallelSize, tensor_parallel_size);
  put_field(fields, FieldTag::kKind, static_cast<uint32_t>(kind));
  put_field(fields, FieldTag::kRopeDim, rope_dim);
  Fingerprint result{};
  const auto bytes = fields.bytes();
  const int failed = crypto_generichash_blake2b(
      result.data(), result.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
      bytes.size(), nullptr, 0);
  assert(failed == 0);
  static_cast<void>(failed);
  return result;
}

std::string KvLayout::to_string() const {
  return "KvLayout{version=" + std::to_string(kKvLayoutVersion) + ", model=" + to_hex(model) +
         ", kind=" + (kind == KvKind::kMla ? "mla" : "gqa") +
         ", num_layers=" + std::to_string(num_layers) +
         ", num_kv_heads=" + std::to_string(num_kv_heads) +
         ", head_dim=" + std::to_string(head_dim) + ", rope_dim=" + std::to_string(rope_dim) +
         ", dtype=" + name(dtype) + ", block_tokens=" + std::to_string(kBlockTokens) +
         ", tensor_parallel_rank=" + std::to_string(tensor_parallel_rank) +
         ", tensor_parallel_size=" + std::to_string(tensor_parallel_size) +
         ", fingerprint=" + to_hex(fingerprint()) + "}";
}

void zero_tail(const KvLayout& layout, uint32_t num_used_slots, std::byte* block) {
  assert(num_used_slots <= kBlockTokens);
  const size_t element = size_bytes(layout.dtype);
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    if (layout.kind == KvKind::kMla) {
      std::memset(block + layout.row_offset(layer, num_used_slots), 0,
                  (kBlockTokens - num_used_slots) * layout.row_bytes());
      continue;
    }
    for (uint32_t head = 0; head < layout.num_rank_heads(); ++head) {
      std::byte* k = block + layout.k_offset(layer, head);
      std::byte* v = block + layout.v_offset(layer, head);
      zero_columns(k, layout.head_dim, element, num_used_slots);
      std::memset(v + size_t{num_used_slots} * layout.head_dim * element, 0,
                  size_t{kBlockTokens - num_used_slots} * layout.head_dim * element);
      if (!layout.is_scaled()) continue;
      zero_columns(k + layout.scales_offset(), 1, sizeof(float), num_used_slots);
      zero_columns(v + layout.scales_offset(), 1, sizeof(float), num_used_slots);
    }
  }
}

}  // namespace crossdock
