// XXH3-128 over the bytes of the blocks of a handoff, in order: what a commit carries and its
// receiver verifies.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock {

class BlockChecksum {
 public:
  BlockChecksum();
  // block_bytes() of one block.
  void add(const KvLayout& layout, const std::byte* block);
  std::array<uint8_t, 16> value() const;

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// Over these blocks of a slab.
std::array<uint8_t, 16> checksum_blocks(const KvLayout& layout, std::span<const std::byte> slab,
                                        std::span<const BlockId> blocks);

}  // namespace crossdock
