// A radix tree over chained block hashes: which blocks of this pool hold which prefix.
//
// An edge is a run of whole blocks; a node owns the block ids of its run. Because a chained hash
// names everything before it, the first hash of a run identifies its node in the whole tree: one
// flat index replaces a child map per node, and a match walks run by run, comparing contiguous
// hashes. A run is bounded (kRunBlocks), so that a node is one fixed-size piece of memory that is
// recycled without allocating; a longer run continues in an only child.
//
// A block enters only once its bytes are final. Where the prefix is already resident under another
// block, the newcomer stays private to its sequence. Only leaves are evicted, the least recently
// used first and never one that a table references, so shared roots outlive their leaves.
//
// Not thread-safe; no clock (ticks are arguments), IO, logging or randomness.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "crossdock/blocks/block_pool.h"
#include "crossdock/prefix/block_hash.h"
#include "crossdock/prefix/prefix_index.h"

namespace crossdock {

class PrefixTree {
 public:
  explicit PrefixTree(BlockPool& pool);
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

  uint32_t num_blocks() const { return num_blocks_; }
  // Aborts with a message unless runs, index, parents, LRU order and the pool's states agree.
  void check() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kRunBlocks = 16;
  static constexpr uint32_t kSlabNodes = 64;

  // When a path was used last: by tick, and within a tick in the order of the actions.
  struct Use {
    uint64_t tick = 0;
    uint64_t action = 0;
    friend auto operator<=>(const Use&, const Use&) = default;
  };
  struct Node {
    uint32_t parent;
    uint32_t num_children;
    uint32_t size;  // of the run; 0 marks an unused node
    bool in_heap;
    Use used;  // of every block of the run: a match that ends within it splits it
    BlockHash hashes[kRunBlocks];
    BlockId blocks[kRunBlocks];
  };
  // A leaf that may be evictable. `used` may be behind the node's; it is brought up to date when
  // the entry comes to the top.
  struct Candidate {
    Use used;
    uint32_t node;
  };
  // Where a walk along a chain ended: `depth` blocks match, the last `within` of them in `node`.
  struct Walk {
    uint32_t node = kNone;
    uint32_t within = 0;
    uint32_t depth = 0;
  };

  Node& at(uint32_t node) { return slabs_[node / kSlabNodes][node % kSlabNodes]; }
  const Node& at(uint32_t node) const { return slabs_[node / kSlabNodes][node % kSlabNodes]; }

  uint32_t find(const BlockHash& hash) const;
  Walk walk(std::span<const BlockHash> chain) const;
  // A tick below an earlier one counts as that one, so uses never go back.
  Use next_use(uint64_t tick);
  // Walks, splits the last run where the walk ends within it, and marks the path as used.
  Walk use(std::span<const BlockHash> chain, uint64_t tick);
  // The first `size` blocks of the run become a new node above the rest, which keeps its number
  // (and so its children's parent links). Returns the upper node.
  uint32_t split(uint32_t node, uint32_t size);
  uint32_t allocate_node();
  uint32_t add_leaf(uint32_t parent, const BlockHash& first, Use used);
  void free_node(uint32_t node);
  void append(uint32_t node, const BlockHash& hash, BlockId block);
  void push_candidate(uint32_t node);
  void pop_candidate();
  // The least recently used leaf whose tail is unreferenced, on top of the heap; or kNone.
  uint32_t next_victim();
  void check_node(uint32_t node) const;
  void check_shape(uint32_t num_nodes) const;

  BlockPool& pool_;
  std::vector<std::unique_ptr<Node[]>> slabs_;
  std::vector<uint32_t> free_nodes_;
  PrefixIndex index_;
  std::vector<uint32_t> node_of_;  // by block: the node whose run holds it, or kNone
  // A min-heap. A leaf is in it, or its tail is referenced, or the pool still has one of its
  // blocks on the list of released ones (then the next eviction puts it back).
  std::vector<Candidate> heap_;
  uint64_t last_tick_ = 0;
  uint64_t num_actions_ = 0;
  uint32_t num_blocks_ = 0;
};

}  // namespace crossdock
