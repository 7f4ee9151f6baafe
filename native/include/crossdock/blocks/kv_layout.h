// How one KV block is laid out in memory, as a value that peers compare by fingerprint.
//
// A block holds kBlockTokens token positions of all layers. Within it, layer by layer:
//   GQA  for every KV head: K as [head_dim][slot] (transposed: one vector load covers the slots of
//        one dimension, so scores need no horizontal sum), for FP8 the f32 scales of K [slot], then
//        V as [slot][head_dim], for FP8 the f32 scales of V [slot].
//   MLA  for every slot one row: the latent (head_dim values), for fp8_ds_mla one f32 scale per 128
//        of them, then rope_dim values, in bf16 for fp8_ds_mla. For DeepSeek-V3 (512, 64) that is
//        656 bytes, the arrangement that FlashMLA and vLLM call fp8_ds_mla.
// Of a model that is split over tensor-parallel ranks a block holds the KV heads of its rank: an
// equal share of consecutive ones or, where there are more ranks than heads, one that its
// neighbours hold as well. The latent of MLA is the same on every rank. A layer's bytes are
// contiguous, and a block's stride is rounded up to 4 KiB, so a block is one span and a group of
// layers is one span of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "crossdock/sys/status.h"

namespace crossdock {

inline constexpr uint32_t kBlockTokens = 32;
inline constexpr size_t kBlockAlignment = 4096;

using BlockId = uint32_t;

enum class DType : uint8_t { kF32 = 0, kBf16 = 1, kFp8E4m3 = 2, kFp8E5m2 = 3, kFp8DsMla = 4 };
enum class KvKind : uint8_t { kGqa = 0, kMla = 1 };

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kBf16, DType::kFp8E4m3, DType::kFp8E5m2,
                                       DType::kFp8DsMla};
inline constexpr uint32_t kLatentScaleGroup = 128;  // latent values that share a scale

// Bytes of one element; of fp8_ds_mla one of the latent.
size_t size_bytes(DType dtype);
std::string name(DType dtype);  // "f32", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"

using Fingerprint = std::array<uint8_t, 16>;

struct KvLayout {
  Fingerprint model{};  // of the checkpoint: architecture, dimensions and weights
  KvKind kind = KvKind::kGqa;
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;  // of the model, on all ranks together; MLA: 1
  uint32_t head_dim = 0;      // GQA: of K and of V; MLA: of the latent
  uint32_t rope_dim = 0;      // MLA alone
  DType dtype = DType::kF32;
  uint32_t tensor_parallel_rank = 0;
  uint32_t tensor_parallel_size = 1;

  // INVALID_ARGUMENT where the kind has no such dtype, the dims do not suit it, or the heads cannot
  // be shared out to the ranks.
  Status validate() const;

  // KV heads in a block, and the first of them in the model.
  uint32_t num_rank_heads() const {
    return num_kv_heads < tensor_parallel_size ? 1 : num_kv_heads / tensor_parallel_size;
  }
  uint32_t first_rank_head() const {
    return static_cast<uint32_t>(uint64_t{tensor_parallel_rank} * num_kv_heads /
                                 tensor_parallel_size);
  }
  // Ranks that hold the same bytes.
  uint32_t num_replicas() const {
    return num_kv_heads < tensor_parallel_size ? tensor_parallel_size / num_kv_heads : 1;
  }

  // GQA: bytes of K (or of V) of one head in one layer of one block, its scales among them.
  size_t head_bytes() const {
    return size_t{kBlockTokens} * (head_dim * size_bytes(dtype) + (is_scaled() ? 4 : 0));
  }
  // MLA: bytes of one token in one layer.
  size_t row_bytes() const {
    if (dtype == DType::kFp8DsMla) {
      return head_dim + size_t{4} * (head_dim / kLatentScaleGroup) + size_t{2} * rope_dim;
    }
    return (size_t{head_dim} + rope_dim) * size_bytes(dtype);
  }
  size_t layer_bytes() const {
    return kind == KvKind::kMla ? kBlockTokens * row_bytes()
                                : 2 * size_t{num_rank_heads()} * head_bytes();
  }
  size_t block_bytes() const { return num_layers * layer_bytes(); }
  size_t stride_bytes() const {
    return (block_bytes() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
  // Heads count from the rank's first.
  size_t k_offset(uint32_t layer, uint32_t head) const {
    return layer * layer_bytes() + 2 * size_t{head} * head_bytes();
  }
  size_t v_offset(uint32_t layer, uint32_t head) const {
    return k_offset(layer, head) + head_bytes();
  }
  // Of the scales, behind the elements of a head's K or V.
  size_t scales_offset() const { return size_t{kBlockTokens} * head_dim * size_bytes(dtype); }
  bool is_scaled() const { return dtype == DType::kFp8E4m3 || dtype == DType::kFp8E5m2; }
  // MLA: of a slot's row.
  size_t row_offset(uint32_t layer, uint32_t slot) const {
    return layer * layer_bytes() + slot * row_bytes();
  }
  // Whether a block of this layout can be made from one of the other: all but the dtype is equal.
  bool converts_from(const KvLayout& other) const;

  // BLAKE2b-128 over every field above, the block size and the layout version.
  Fingerprint fingerprint() const;
  std::string to_string() const;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

inline constexpr uint32_t kKvLayoutVersion = 2;

// Zeroes slots [num_used_slots, kBlockTokens) of a block in every layer, their scales among them.
void zero_tail(const KvLayout& layout, uint32_t num_used_slots, std::byte* block);

}  // namespace crossdock
