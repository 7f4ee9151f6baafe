// Chained 128-bit block hashes: a hash names the tokens of a block, everything before it, the
// tenant, and the numerics that computed its bytes.
//
//   root  = BLAKE2b-128(key = tenant salt, data = typed, length-prefixed {model fingerprint,
//           adapter, numerics id})
//   link  = BLAKE2b-128(salt = parent hash, personal = "crossdock-block" and the number of
//   generated
//           positions as a byte, data = 32 token ids as little-endian int32)
// A link is exactly one BLAKE2b compression: the parent goes in as the 16-byte salt parameter
// (RFC 7693 has the parameter block), so 128 bytes of tokens fill one message block. Since the
// root is keyed and secret, so is every link that depends on it. Test vectors: docs/block-hash.md.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock {

struct BlockHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const BlockHash&, const BlockHash&) = default;
};

// tenant_salt: at most 64 bytes, may be empty (no tenant isolation).
BlockHash root_hash(std::string_view tenant_salt, const Fingerprint& model,
                    std::string_view adapter, std::string_view numerics_id);

// tokens: exactly kBlockTokens ids. num_generated: how many of them, the last, are at positions
// that were computed as generated ones; 0 where numerics treat them as they do a prompt's.
BlockHash next_hash(const BlockHash& parent, std::span<const int32_t> tokens,
                    uint32_t num_generated = 0);

// Appends the hashes of the whole blocks of `tokens` beyond those already in `chain`. Positions
// from first_generated on are generated.
void extend_chain(const BlockHash& root, std::span<const int32_t> tokens, uint32_t first_generated,
                  std::vector<BlockHash>& chain);

}  // namespace crossdock

template <>
struct std::hash<crossdock::BlockHash> {
  size_t operator()(const crossdock::BlockHash& h) const noexcept { return h.low; }
};
