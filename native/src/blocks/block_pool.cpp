#include "crossdock/blocks/block_pool.h"

#include <cstdio>
#include <cstdlib>

namespace crossdock {
namespace {

void require(bool condition, const char* what, BlockId block, uint64_t found, uint64_t expected) {
  if (condition) return;
  std::fprintf(stderr, "BlockPool::check: %s (block %u: %llu, expected %llu)\n", what, block,
               static_cast<unsigned long long>(found), static_cast<unsigned long long>(expected));
  std::abort();
}

constexpr BlockId kNoBlock = UINT32_MAX;

}  // namespace

BlockPool::BlockPool(uint32_t num_blocks) : blocks_(num_blocks) {
  assert(num_blocks < kListEnd);
  free_.reserve(num_blocks);
  // Reversed, so that a fresh pool hands out 0, 1, 2, ...
  for (uint32_t block = num_blocks; block-- > 0;) free_.push_back(block);
}

bool BlockPool::acquire(uint32_t count, std::vector<BlockId>& out) {
  if (count > free_.size()) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const BlockId block = free_.back();
    free_.pop_back();
    Block& b = blocks_[block];
    assert(b.state == BlockState::kFree && b.references == 0);
    b.state = BlockState::kOwned;
    b.references = 1;
    out.push_back(block);
  }
  num_owned_ += count;
  return true;
}

void BlockPool::last_reference_dropped(BlockId block) {
  Block& b = blocks_[block];
  if (b.state == BlockState::kOwned) {
    b.state = BlockState::kFree;
    --num_owned_;
    free_.push_back(block);
    return;
  }
  assert(b.state == BlockState::kCached);
  ++num_cached_unreferenced_;
  if (b.next_released == kNotListed) {
    b.next_released = released_;
    released_ = block;
  }
}

void BlockPool::cache(BlockId block) {
  Block& b = at(block);
  assert(b.state == BlockState::kOwned && b.references > 0);
  b.state = BlockState::kCached;
  --num_owned_;
  ++num_cached_;
}

void BlockPool::uncache(BlockId block) {
  Block& b = at(block);
  assert(b.state == BlockState::kCached);
  --num_cached_;
  if (b.references > 0) {
    b.state = BlockState::kOwned;
    ++num_owned_;
  } else {
    b.state = BlockState::kFree;
    --num_cached_unreferenced_;
    free_.push_back(block);
  }
}

void BlockPool::quarantine(BlockId block) {
  Block& b = at(block);
  assert(b.state == BlockState::kOwned && b.references == 1);
  b.state = BlockState::kQuarantined;
  b.references = 0;
  --num_owned_;
  ++num_quarantined_;
}

void BlockPool::release_quarantined(BlockId block) {
  Block& b = at(block);
  assert(b.state == BlockState::kQuarantined);
  b.state = BlockState::kFree;
  --num_quarantined_;
  free_.push_back(block);
}

void BlockPool::check(std::span<const std::span<const BlockId>> tables) const {
  std::vector<uint32_t> references(blocks_.size());
  for (const auto& table : tables) {
    for (const BlockId block : table) {
      require(block < blocks_.size(), "a table names a block out of range", block, block,
              blocks_.size());
      ++references[block];
    }
  }
  uint32_t counts[4] = {};
  uint32_t num_cached_unreferenced = 0;
  for (BlockId block = 0; block < blocks_.size(); ++block) {
    const Block& b = blocks_[block];
    ++counts[static_cast<size_t>(b.state)];
    require(b.references == references[block], "recorded references differ from the tables'", block,
            b.references, references[block]);
    const bool may_be_referenced = b.state == BlockState::kOwned || b.state == BlockState::kCached;
    require(may_be_referenced || b.references == 0, "a free or quarantined block is referenced",
            block, b.references, 0);
    require(b.state != BlockState::kOwned || b.references > 0, "an owned block has no owner", block,
            0, 1);
    num_cached_unreferenced += b.state == BlockState::kCached && b.references == 0;
  }
  std::vector<bool> listed(blocks_.size());
  for (const BlockId block : free_) {
    require(blocks_[block].state == BlockState::kFree, "the free list names a block in use", block,
            static_cast<uint64_t>(blocks_[block].state), 0);
    require(!listed[block], "the free list names a block twice", block, 2, 1);
    listed[block] = true;
  }
  const auto count = [&](BlockState state) { return counts[static_cast<size_t>(state)]; };
  require(count(BlockState::kFree) == free_.size(), "free blocks are missing from the free list",
          kNoBlock, free_.size(), count(BlockState::kFree));
  require(count(BlockState::kOwned) == num_owned_, "num_owned", kNoBlock, num_owned_,
          count(BlockState::kOwned));
  require(count(BlockState::kCached) == num_cached_, "num_cached", kNoBlock, num_cached_,
          count(BlockState::kCached));
  require(count(BlockState::kQuarantined) == num_quarantined_, "num_quarantined", kNoBlock,
          num_quarantined_, count(BlockState::kQuarantined));
  require(num_cached_unreferenced == num_cached_unreferenced_, "num_cached_unreferenced", kNoBlock,
          num_cached_unreferenced_, num_cached_unreferenced);
}

}  // namespace crossdock
