// Accounts for the blocks of one slab. Owns no memory: a BlockId is an index into the slab.
//
// Every block is in exactly one state:
//   free         nobody knows it; it may be handed out
//   owned        at least one table holds it (references > 0) and the prefix tree does not
//   cached       the prefix tree holds it; tables may reference it too (then it cannot be evicted)
//   quarantined  nobody may use it: a one-sided operation already posted may still touch it
//
//   free --acquire--> owned --unreference(last)--> free
//   owned --cache--> cached --uncache--> owned (references > 0) or free
//   owned --quarantine--> quarantined --release_quarantined--> free
//
// A quarantined block keeps no references: its table gave it up. A cached block is never
// quarantined, since nothing is ever written into it.
//
// Not thread-safe: the engine's loop thread alone owns it. No clock, IO, logging or randomness.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock {

enum class BlockState : uint8_t { kFree, kOwned, kCached, kQuarantined };

class BlockPool {
 public:
  explicit BlockPool(uint32_t num_blocks);

  // Appends `count` free blocks, each with one reference, to `out`; all or none.
  bool acquire(uint32_t count, std::vector<BlockId>& out);
  void reference(BlockId block);
  // Dropping the last reference frees an owned block and leaves a cached one cached.
  void unreference(BlockId block);

  void cache(BlockId block);    // owned -> cached; the tree takes it over beside its tables
  void uncache(BlockId block);  // cached -> owned or free

  // The caller's reference is the only one; it becomes the quarantine.
  void quarantine(BlockId block);
  void release_quarantined(BlockId block);

  BlockState state(BlockId block) const;
  uint32_t references(BlockId block) const;

  uint32_t num_blocks() const;
  uint32_t num_free() const;
  uint32_t num_owned() const;
  uint32_t num_cached() const;
  uint32_t num_quarantined() const;
  // Cached blocks that no table references: what eviction could free at once.
  uint32_t num_cached_unreferenced() const;

  // Aborts with a message unless the four states partition the pool, the counters match, and the
  // references of `tables` are exactly those recorded.
  void check(std::span<const std::span<const BlockId>> tables) const;

 private:
  struct Block {
    uint32_t references = 0;
    BlockState state = BlockState::kFree;
  };
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block freed last is the warmest
  uint32_t num_owned_ = 0;
  uint32_t num_cached_ = 0;
  uint32_t num_cached_unreferenced_ = 0;
  uint32_t num_quarantined_ = 0;
};

}  // namespace crossdock
