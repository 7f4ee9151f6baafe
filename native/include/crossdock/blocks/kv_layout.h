// How one KV block is laid out in memory, as a value that peers compare by fingerprint.
//
// A block holds kBlockTokens token positions of all layers. Within it, layer by layer:
//   for every KV head: K as [head_dim][slot] (transposed: one vector load covers eight slots of one
//   dimension, so scores need no horizontal sum), then V as [slot][head_dim].
// A layer's bytes are contiguous, and a block's stride is rounded up to 4 KiB, so a block is one
// span and a group of layers is one span of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace crossdock {

inline constexpr uint32_t kBlockTokens = 32;
inline constexpr size_t kBlockAlignment = 4096;

using BlockId = uint32_t;

enum class DType : uint8_t { kF32 = 0, kBf16 = 1 };

size_t size_bytes(DType dtype);
std::string name(DType dtype);

using Fingerprint = std::array<uint8_t, 16>;

struct KvLayout {
  Fingerprint model{};  // of the checkpoint: architecture, dimensions and weights
  uint32_t num_layers = 0;
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  DType dtype = DType::kF32;
  uint32_t tensor_parallel_rank = 0;
  uint32_t tensor_parallel_size = 1;

  // Bytes of K (or of V) of one head in one layer of one block.
  size_t head_bytes() const { return size_t{kBlockTokens} * head_dim * size_bytes(dtype); }
  size_t layer_bytes() const { return 2 * size_t{num_kv_heads} * head_bytes(); }
  size_t block_bytes() const { return num_layers * layer_bytes(); }
  size_t stride_bytes() const {
    return (block_bytes() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
  size_t k_offset(uint32_t layer, uint32_t head) const {
    return layer * layer_bytes() + 2 * size_t{head} * head_bytes();
  }
  size_t v_offset(uint32_t layer, uint32_t head) const {
    return k_offset(layer, head) + head_bytes();
  }

  // BLAKE2b-128 over every field above, the block size and the layout version.
  Fingerprint fingerprint() const;
  std::string to_string() const;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

inline constexpr uint32_t kKvLayoutVersion = 1;

}  // namespace crossdock
