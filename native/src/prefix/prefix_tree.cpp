#include "crossdock/prefix/prefix_tree.h"

#include <algorithm>
#include <cassert>

namespace crossdock {
namespace {

struct Later {
  template <typename Candidate>
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.used > b.used;
  }
};

}  // namespace

PrefixTree::PrefixTree(BlockPool& pool) : pool_(pool), node_of_(pool.num_blocks(), kNone) {}

uint32_t PrefixTree::find(const BlockHash& hash) const {
  return index_.find(hash, [&](uint32_t node) { return at(node).hashes[0] == hash; });
}

PrefixTree::Walk PrefixTree::walk(std::span<const BlockHash> chain) const {
  Walk walk;
  while (walk.depth < chain.size()) {
    const uint32_t next = find(chain[walk.depth]);
    if (next == kNone) break;
    const Node& node = at(next);
    const auto rest = chain.subspan(walk.depth);
    const uint32_t limit = static_cast<uint32_t>(std::min<size_t>(node.size, rest.size()));
    uint32_t same = 1;
    while (same < limit && node.hashes[same] == rest[same]) ++same;
    walk = {next, same, walk.depth + same};
    if (same < node.size) break;
  }
  return walk;
}

PrefixTree::Use PrefixTree::next_use(uint64_t tick) {
  last_tick_ = std::max(last_tick_, tick);
  return {last_tick_, ++num_actions_};
}

PrefixTree::Walk PrefixTree::use(std::span<const BlockHash> chain, uint64_t tick) {
  Walk path = walk(chain);
  if (path.node == kNone) return path;
  if (path.within < at(path.node).size) path.node = split(path.node, path.within);
  const Use now = next_use(tick);
  for (uint32_t i = path.node; i != kNone; i = at(i).parent) at(i).used = now;
  return path;
}

uint32_t PrefixTree::match(std::span<const BlockHash> chain, uint64_t tick,
                           std::vector<BlockId>& out) {
  const Walk path = use(chain, tick);
  const size_t begin = out.size();
  out.resize(begin + path.depth);
  BlockId* end = out.data() + out.size();
  for (uint32_t i = path.node; i != kNone; i = at(i).parent) {
    const Node& node = at(i);
    end -= node.size;
    for (uint32_t k = 0; k < node.size; ++k) {
      pool_.reference(node.blocks[k]);
      end[k] = node.blocks[k];
    }
  }
  assert(end == out.data() + begin);
  return path.depth;
}

uint32_t PrefixTree::match_length(std::span<const BlockHash> chain) const {
  return walk(chain).depth;
}

uint32_t PrefixTree::insert(std::span<const BlockHash> chain, std::span<const BlockId> blocks,
                            uint64_t tick) {
  assert(chain.size() == blocks.size());
  const Walk path = use(chain, tick);
  if (path.depth == chain.size()) return 0;
  const Use now = path.node == kNone ? next_use(tick) : at(path.node).used;
  uint32_t tail = path.node;
  for (size_t i = path.depth; i < chain.size(); ++i) {
    const bool extends = tail != kNone && at(tail).num_children == 0 && at(tail).size < kRunBlocks;
    if (!extends) tail = add_leaf(tail, chain[i], now);
    append(tail, chain[i], blocks[i]);
  }
  // The tail is referenced by the caller; it becomes a candidate when that reference is dropped.
  return static_cast<uint32_t>(chain.size()) - path.depth;
}

uint32_t PrefixTree::evict(uint32_t count, std::vector<BlockHash>* evicted) {
  pool_.drain_released([&](BlockId block) {
    const Node& node = at(node_of_[block]);
    if (node.num_children == 0 && !node.in_heap) push_candidate(node_of_[block]);
  });
  uint32_t num_evicted = 0;
  while (num_evicted < count) {
    const uint32_t victim = next_victim();
    if (victim == kNone) break;
    Node& node = at(victim);
    const BlockHash first = node.hashes[0];
    while (node.size > 0 && num_evicted < count) {
      const BlockId block = node.blocks[node.size - 1];
      if (pool_.references(block) > 0) break;
      if (evicted != nullptr) evicted->push_back(node.hashes[node.size - 1]);
      pool_.uncache(block);
      node_of_[block] = kNone;
      --node.size;
      --num_blocks_;
      ++num_evicted;
    }
    if (node.size > 0) continue;
    pop_candidate();
    index_.erase(first, victim);
    const uint32_t parent = node.parent;
    free_node(victim);
    if (parent != kNone && --at(parent).num_children == 0 && !at(parent).in_heap) {
      push_candidate(parent);
    }
  }
  return num_evicted;
}

uint32_t PrefixTree::split(uint32_t lower_id, uint32_t size) {
  const uint32_t upper_id = allocate_node();
  Node& upper = at(upper_id);
  Node& lower = at(lower_id);
  assert(0 < size && size < lower.size);
  upper.parent = lower.parent;
  upper.num_children = 1;
  upper.size = size;
  upper.in_heap = false;
  upper.used = lower.used;
  std::copy_n(lower.hashes, size, upper.hashes);
  std::copy_n(lower.blocks, size, upper.blocks);
  for (uint32_t i = 0; i < size; ++i) node_of_[upper.blocks[i]] = upper_id;
  index_.replace(upper.hashes[0], lower_id, upper_id);
  lower.parent = upper_id;
  lower.size -= size;
  std::copy_n(lower.hashes + size, lower.size, lower.hashes);
  std::copy_n(lower.blocks + size, lower.size, lower.blocks);
  index_.insert(lower.hashes[0], lower_id);
  return upper_id;
}

uint32_t PrefixTree::allocate_node() {
  if (free_nodes_.empty()) {
    const uint32_t first = static_cast<uint32_t>(slabs_.size()) * kSlabNodes;
    slabs_.push_back(std::make_unique_for_overwrite<Node[]>(kSlabNodes));
    // Room for every node at once: neither freeing one nor making it a candidate allocates.
    if (heap_.capacity() < first + kSlabNodes) {
      free_nodes_.reserve(2 * (first + kSlabNodes));
      heap_.reserve(2 * (first + kSlabNodes));
    }
    for (uint32_t i = kSlabNodes; i-- > 0;) {
      at(first + i).size = 0;
      free_nodes_.push_back(first + i);
    }
  }
  const uint32_t node = free_nodes_.back();
  free_nodes_.pop_back();
  return node;
}

uint32_t PrefixTree::add_leaf(uint32_t parent, const BlockHash& first, Use used) {
  const uint32_t leaf_id = allocate_node();
  Node& leaf = at(leaf_id);
  leaf.parent = parent;
  leaf.num_children = 0;
  leaf.size = 0;
  leaf.in_heap = false;
  leaf.used = used;
  index_.insert(first, leaf_id);
  if (parent != kNone) ++at(parent).num_children;
  return leaf_id;
}

void PrefixTree::free_node(uint32_t node) {
  assert(at(node).size == 0 && at(node).num_children == 0 && !at(node).in_heap);
  free_nodes_.push_back(node);
}

void PrefixTree::append(uint32_t node_id, const BlockHash& hash, BlockId block) {
  Node& node = at(node_id);
  pool_.cache(block);
  node.hashes[node.size] = hash;
  node.blocks[node.size] = block;
  ++node.size;
  node_of_[block] = node_id;
  ++num_blocks_;
}

void PrefixTree::push_candidate(uint32_t node) {
  at(node).in_heap = true;
  heap_.push_back({at(node).used, node});
  std::push_heap(heap_.begin(), heap_.end(), Later{});
}

void PrefixTree::pop_candidate() {
  at(heap_.front().node).in_heap = false;
  std::pop_heap(heap_.begin(), heap_.end(), Later{});
  heap_.pop_back();
}

uint32_t PrefixTree::next_victim() {
  while (!heap_.empty()) {
    const uint32_t id = heap_.front().node;
    const Node& node = at(id);
    const bool leaf = node.num_children == 0;
    if (leaf && heap_.front().used == node.used) {
      if (pool_.references(node.blocks[node.size - 1]) == 0) return id;
      pop_candidate();  // comes back through the pool's list once the reference is dropped
      continue;
    }
    pop_candidate();
    if (leaf) push_candidate(id);
  }
  return kNone;
}

}  // namespace crossdock
