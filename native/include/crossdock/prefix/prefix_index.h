// A flat hash table from the first hash of a run to the node that owns the run.
//
// It stores 32 bits of the hash and the node; whoever looks up compares the node's own hash, so a
// clash of the 32 bits costs one comparison. Block hashes are uniform and, being keyed, cannot be
// chosen by a caller, so their low bits serve as the position and linear probing stays short.
#pragma once

#include <cstdint>
#include <vector>

#include "crossdock/prefix/block_hash.h"

namespace crossdock {

class PrefixIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  PrefixIndex();

  // The node under `hash` for which matches(node) holds, or kNone.
  template <typename Matches>
  uint32_t find(const BlockHash& hash, Matches&& matches) const {
    const uint32_t tag = tag_of(hash);
    for (uint32_t i = tag & mask_;; i = (i + 1) & mask_) {
      const Entry& entry = entries_[i];
      if (entry.node == kNone) return kNone;
      if (entry.tag == tag && matches(entry.node)) return entry.node;
    }
  }
  // The node must not be there yet.
  void insert(const BlockHash& hash, uint32_t node);
  // The node must be there under this hash.
  void erase(const BlockHash& hash, uint32_t node);
  // The node keeps its place in the table under another number.
  void replace(const BlockHash& hash, uint32_t node, uint32_t by);

  uint32_t size() const { return size_; }

 private:
  struct Entry {
    uint32_t tag = 0;
    uint32_t node = kNone;
  };

  static uint32_t tag_of(const BlockHash& hash) { return static_cast<uint32_t>(hash.low); }
  uint32_t position(const BlockHash& hash, uint32_t node) const;
  void grow();

  std::vector<Entry> entries_;  // a power of two, at most half full
  uint32_t mask_ = 0;
  uint32_t size_ = 0;
};

}  // namespace crossdock
