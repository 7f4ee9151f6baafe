#include "crossdock/blocks/rank_copies.h"

#include <algorithm>
#include <cassert>

namespace crossdock {
namespace {

[[maybe_unused]] bool differ_in_rank_alone(KvLayout from, const KvLayout& to) {
  from.tensor_parallel_rank = to.tensor_parallel_rank;
  from.tensor_parallel_size = to.tensor_parallel_size;
  return from == to;
}

// Of the ranks that hold the same as `from`, one serves each receiver.
bool serves(const KvLayout& from, const KvLayout& to) {
  const uint32_t replicas = from.num_replicas();
  return from.tensor_parallel_rank % replicas == to.tensor_parallel_rank % replicas;
}

}  // namespace

std::vector<RankCopy> plan_rank_copies(const KvLayout& from, const KvLayout& to) {
  assert(from.validate().ok() && to.validate().ok() && differ_in_rank_alone(from, to));
  if (!serves(from, to)) return {};
  if (from.kind == KvKind::kMla) return {{0, 0, to.block_bytes()}};
  const uint32_t from_first = from.first_rank_head(), to_first = to.first_rank_head();
  const uint32_t begin = std::max(from_first, to_first);
  const uint32_t end = std::min(from_first + from.num_rank_heads(), to_first + to.num_rank_heads());
  if (begin >= end) return {};
  // The heads of a layer lie in a row, K and V of each together.
  const size_t length = 2 * size_t{end - begin} * from.head_bytes();
  std::vector<RankCopy> copies;
  for (uint32_t layer = 0; layer < to.num_layers; ++layer) {
    const RankCopy copy{from.k_offset(layer, begin - from_first),
                        to.k_offset(layer, begin - to_first), length};
    if (!copies.empty()) {
      RankCopy& last = copies.back();
      const bool adjoins = last.source_bytes + last.length_bytes == copy.source_bytes &&
                           last.target_bytes + last.length_bytes == copy.target_bytes;
      if (adjoins) {
        last.length_bytes += copy.length_bytes;
        continue;
      }
    }
    copies.push_back(copy);
  }
  return copies;
}

}  // namespace crossdock
