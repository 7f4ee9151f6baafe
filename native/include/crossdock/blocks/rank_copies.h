// Which bytes of a block go where, when sender and receiver split one model over different numbers
// of tensor-parallel ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "crossdock/blocks/kv_layout.h"

namespace crossdock {

struct RankCopy {
  size_t source_bytes = 0;  // offsets within a block
  size_t target_bytes = 0;
  size_t length_bytes = 0;
  friend bool operator==(const RankCopy&, const RankCopy&) = default;
};

// What the sender's rank `from` writes of each block into the receiver's rank `to`, in ascending
// order, as few copies as there can be. The layouts differ in rank and size alone, and both are
// valid. Over all ranks of the sender every byte of a receiver's block is written exactly once;
// where several of them hold it, the receiver's ranks are spread over these.
std::vector<RankCopy> plan_rank_copies(const KvLayout& from, const KvLayout& to);

}  // namespace crossdock
