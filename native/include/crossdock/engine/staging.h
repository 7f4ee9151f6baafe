// Where blocks are converted for a peer that holds another KV dtype: a few registered blocks of our
// own segment, behind the pool. They bound what conversion may take; a sender without one waits for
// its writes to end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock {

class Staging {
 public:
  static constexpr uint32_t kSlots = 16;

  // `segment` ends with bytes(layout) bytes that are ours.
  Staging(const KvLayout& layout, std::span<std::byte> segment);

  // Of the segment, for whatever dtype a peer may hold.
  static size_t bytes(const KvLayout& layout);

  // Converts the block at `source` of the segment for a peer; the segment offset of the result, or
  // nothing while every slot is taken. Whoever has an offset releases it.
  std::optional<uint64_t> convert(uint64_t source, const KvLayout& target);
  void release(uint64_t offset) { free_.push_back(offset); }
  uint32_t num_free() const { return static_cast<uint32_t>(free_.size()); }

 private:
  const KvLayout& layout_;
  std::span<std::byte> segment_;
  std::vector<uint64_t> free_;
};

}  // namespace crossdock
