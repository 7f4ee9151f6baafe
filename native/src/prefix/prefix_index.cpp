#include "crossdock/prefix/prefix_index.h"

#include <cassert>
#include <utility>

namespace crossdock {

PrefixIndex::PrefixIndex() : entries_(64), mask_(63) {}

uint32_t PrefixIndex::position(const BlockHash& hash, uint32_t node) const {
  for (uint32_t i = tag_of(hash) & mask_;; i = (i + 1) & mask_) {
    assert(entries_[i].node != kNone);
    if (entries_[i].node == node) return i;
  }
}

void PrefixIndex::insert(const BlockHash& hash, uint32_t node) {
  assert(node != kNone);
  if (2 * (size_ + 1) > entries_.size()) grow();
  uint32_t i = tag_of(hash) & mask_;
  while (entries_[i].node != kNone) i = (i + 1) & mask_;
  entries_[i] = {tag_of(hash), node};
  ++size_;
}

void PrefixIndex::erase(const BlockHash& hash, uint32_t node) {
  uint32_t hole = position(hash, node);
  // The entries after the hole move up where their own probe passes it, so no tombstone is left.
  for (uint32_t i = (hole + 1) & mask_; entries_[i].node != kNone; i = (i + 1) & mask_) {
    const uint32_t home = entries_[i].tag & mask_;
    if (((i - home) & mask_) >= ((i - hole) & mask_)) {
      entries_[hole] = entries_[i];
      hole = i;
    }
  }
  entries_[hole] = Entry{};
  --size_;
}

void PrefixIndex::replace(const BlockHash& hash, uint32_t node, uint32_t by) {
  entries_[position(hash, node)].node = by;
}

void PrefixIndex::grow() {
  const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(2 * entries_.size()));
  mask_ = static_cast<uint32_t>(entries_.size()) - 1;
  for (const Entry& entry : old) {
    if (entry.node == kNone) continue;
    uint32_t i = entry.tag & mask_;
    while (entries_[i].node != kNone) i = (i + 1) & mask_;
    entries_[i] = entry;
  }
}

}  // namespace crossdock
