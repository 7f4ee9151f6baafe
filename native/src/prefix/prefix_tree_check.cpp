// PrefixTree::check, apart from the tree proper.
#include <cstdio>
#include <cstdlib>

#include "crossdock/prefix/prefix_tree.h"

namespace crossdock {
namespace {

void require(bool condition, const char* what, uint32_t node) {
  if (condition) return;
  std::fprintf(stderr, "PrefixTree::check: %s (node %u)\n", what, node);
  std::abort();
}

}  // namespace

void PrefixTree::check_node(uint32_t id) const {
  const Node& node = at(id);
  require(node.size <= kRunBlocks, "a run is longer than a node", id);
  require(find(node.hashes[0]) == id, "the index does not find the node", id);
  bool released = false;
  for (uint32_t i = 0; i < node.size; ++i) {
    const BlockId block = node.blocks[i];
    require(block < node_of_.size(), "a run holds a block out of range", id);
    require(node_of_[block] == id, "a block does not know its node", id);
    require(pool_.state(block) == BlockState::kCached, "a block of the tree is not cached", id);
    released |= pool_.is_released(block);
  }
  if (node.parent != kNone) {
    require(at(node.parent).size > 0, "the parent is not in use", id);
    require(at(node.parent).used >= node.used, "a child was used after its parent", id);
  }
  if (node.num_children == 0) {
    const bool pinned = pool_.references(node.blocks[node.size - 1]) > 0;
    require(node.in_heap || pinned || released, "eviction has lost sight of a leaf", id);
  }
}

void PrefixTree::check_shape(uint32_t num_nodes) const {
  // Leaves are taken off until nothing is left; a cycle would remain.
  std::vector<uint32_t> num_children(slabs_.size() * kSlabNodes);
  for (uint32_t id = 0; id < num_children.size(); ++id) {
    if (at(id).size > 0 && at(id).parent != kNone) ++num_children[at(id).parent];
  }
  std::vector<uint32_t> leaves;
  for (uint32_t id = 0; id < num_children.size(); ++id) {
    if (at(id).size == 0) continue;
    require(num_children[id] == at(id).num_children, "num_children", id);
    if (num_children[id] == 0) leaves.push_back(id);
  }
  uint32_t num_taken = 0;
  while (!leaves.empty()) {
    const uint32_t parent = at(leaves.back()).parent;
    leaves.pop_back();
    ++num_taken;
    if (parent != kNone && --num_children[parent] == 0) leaves.push_back(parent);
  }
  require(num_taken == num_nodes, "the parent links have a cycle", num_taken);
}

void PrefixTree::check() const {
  uint32_t num_nodes = 0;
  uint32_t num_blocks = 0;
  uint32_t num_in_heap = 0;
  const auto num_node_ids = static_cast<uint32_t>(slabs_.size() * kSlabNodes);
  for (uint32_t id = 0; id < num_node_ids; ++id) {
    if (at(id).size == 0) continue;
    check_node(id);
    ++num_nodes;
    num_blocks += at(id).size;
    num_in_heap += at(id).in_heap;
  }
  check_shape(num_nodes);
  require(num_nodes + free_nodes_.size() == num_node_ids, "a node is lost", num_nodes);
  require(num_nodes == index_.size(), "the index has other nodes than the tree", index_.size());
  require(num_blocks == num_blocks_, "num_blocks", num_blocks);
  require(num_blocks == pool_.num_cached(), "the pool's cached blocks are not the tree's",
          pool_.num_cached());
  require(num_in_heap == heap_.size(), "the heap has other nodes than are marked", num_in_heap);
  for (const Candidate& candidate : heap_) {
    require(at(candidate.node).in_heap, "a candidate is not marked", candidate.node);
    require(candidate.used <= at(candidate.node).used, "a candidate is ahead of its node",
            candidate.node);
  }
}

}  // namespace crossdock
