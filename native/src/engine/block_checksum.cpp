#include "crossdock/engine/block_checksum.h"

#include <cstring>

namespace crossdock {

BlockChecksum::BlockChecksum() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }

void BlockChecksum::add(const KvLayout& layout, const std::byte* block) {
  XXH3_128bits_update(state_.get(), block, layout.block_bytes());
}

std::array<uint8_t, 16> BlockChecksum::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  std::array<uint8_t, 16> bytes;
  std::memcpy(bytes.data(), &hash.low64, 8);
  std::memcpy(bytes.data() + 8, &hash.high64, 8);
  return bytes;
}

std::array<uint8_t, 16> checksum_blocks(const KvLayout& layout, std::span<const std::byte> slab,
                                        std::span<const BlockId> blocks) {
  BlockChecksum checksum;
  for (const BlockId block : blocks) {
    checksum.add(layout, slab.data() + block * layout.stride_bytes());
  }
  return checksum.value();
}

}  // namespace crossdock
