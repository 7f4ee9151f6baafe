// A radix tree over chained block hashes: which blocks of this pool hold which prefix.
//
// An edge is a run of whole blocks; a node owns the block ids of its run. Because a chained hash
// names everything before it, the first hash of a run identifies its node in the whole tree: one
// flat index replaces a child map per node, and a match walks run by run, comparing contiguous
// hashes.
//
// A block enters only once its bytes are final. Where the prefix is already resident under another
// block, the newcomer stays private to its sequence. Only leaves are evicted, the least recently
// used first and never one that a table references, so shared roots outlive their leaves.
//
// Not thread-safe; no clock (ticks are arguments), IO, logging or randomness.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "crossdock/blocks/block_pool.h"
#include "crossdock/prefix/block_hash.h"

namespace crossdock {

class PrefixTree {
 public:
  explicit PrefixTree(BlockPool& pool);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Appends the blocks of the longest resident prefix of `chain` to `out`, each with one more
  // reference (match and pin are one action), and marks the path as used at `tick`. Returns how
  // many.
  uint32_t match(std::span<const BlockHash> chain, uint64_t tick, std::vector<BlockId>& out);

  // How many blocks a match would return, changing nothing.
  uint32_t match_length(std::span<const BlockHash> chain) const;

  // Publishes the chain: blocks[i] holds the bytes that chain[i] names, and is referenced by the
  // caller. blocks[i] where chain[i] is already resident are left alone. Returns how many blocks
  // entered the tree. The first hashes may be resident already (and usually are).
  uint32_t insert(std::span<const BlockHash> chain, std::span<const BlockId> blocks, uint64_t tick);

  // Frees up to `count` unreferenced blocks, least recently used leaf first, its tail first.
  // Returns how many; appends their hashes to `evicted` where it is given.
  uint32_t evict(uint32_t count, std::vector<BlockHash>* evicted = nullptr);

  uint32_t num_blocks() const;
  // Aborts with a message unless runs, index, parents, LRU order and the pool's states agree.
  void check() const;

 private:
  struct Impl;  // the owner of this folder replaces this by its own members
  Impl* impl_;
};

}  // namespace crossdock
