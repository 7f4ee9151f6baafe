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

#include <cassert>
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
  void reference(BlockId block) {
    Block& b = at(block);
    assert(b.state == BlockState::kOwned || b.state == BlockState::kCached);
    num_cached_unreferenced_ -= (b.references == 0);
    ++b.references;
  }
  // Dropping the last reference frees an owned block and leaves a cached one cached.
  void unreference(BlockId block) {
    Block& b = at(block);
    assert(b.references > 0);
    if (--b.references == 0) last_reference_dropped(block);
  }

  void cache(BlockId block);    // owned -> cached; the tree takes it over beside its tables
  void uncache(BlockId block);  // cached -> owned or free

  // The caller's reference is the only one; it becomes the quarantine.
  void quarantine(BlockId block);
  void release_quarantined(BlockId block);

  // Calls visit(block) once for every cached block whose last reference was dropped since the last
  // call and that is still unreferenced. It spares the tree a search for leaves that became
  // evictable: whoever drops a reference need not tell it.
  template <typename Visit>
  void drain_released(Visit&& visit) {
    while (released_ != kListEnd) {
      const BlockId block = released_;
      Block& b = blocks_[block];
      released_ = b.next_released;
      b.next_released = kNotListed;
      if (b.state == BlockState::kCached && b.references == 0) visit(block);
    }
  }
  // True while drain_released has yet to look at this block.
  bool is_released(BlockId block) const { return at(block).next_released != kNotListed; }

  BlockState state(BlockId block) const { return at(block).state; }
  uint32_t references(BlockId block) const { return at(block).references; }

  uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t num_owned() const { return num_owned_; }
  uint32_t num_cached() const { return num_cached_; }
  uint32_t num_quarantined() const { return num_quarantined_; }
  // Cached blocks that no table references: at most what eviction could free at once (less where
  // a table references a descendant of theirs through a private duplicate).
  uint32_t num_cached_unreferenced() const { return num_cached_unreferenced_; }

  // Aborts with a message unless the four states partition the pool, the counters match, and the
  // references of `tables` are exactly those recorded.
  void check(std::span<const std::span<const BlockId>> tables) const;

 private:
  static constexpr uint32_t kNotListed = UINT32_MAX;
  static constexpr uint32_t kListEnd = UINT32_MAX - 1;

  struct Block {
    uint32_t references = 0;
    uint32_t next_released = kNotListed;  // link of the list that starts at released_
    BlockState state = BlockState::kFree;
  };

  Block& at(BlockId block) {
    assert(block < blocks_.size());
    return blocks_[block];
  }
  const Block& at(BlockId block) const {
    assert(block < blocks_.size());
    return blocks_[block];
  }
  void last_reference_dropped(BlockId block);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block freed last is the warmest
  uint32_t released_ = kListEnd;
  uint32_t num_owned_ = 0;
  uint32_t num_cached_ = 0;
  uint32_t num_cached_unreferenced_ = 0;
  uint32_t num_quarantined_ = 0;
};

}  // namespace crossdock
