#include "store_process.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace crossdock {

// A look into the index, for checkers. Reads only.
class BlockStoreInspector {
 public:
  explicit BlockStoreInspector(const BlockStore& store) : store_(store) {}

  uint32_t num_slots() const { return static_cast<uint32_t>(store_.slots_.size()); }
  bool published(uint32_t slot) const { return state(slot) == State::kPublished; }
  bool writing(uint32_t slot) const { return state(slot) == State::kWriting; }
  uint64_t generation(uint32_t slot) const { return store_.slots_[slot].generation; }
  const ContentChecksum& checksum(uint32_t slot) const { return store_.slots_[slot].checksum; }

  // A reservation holds its slots as a sequence does an engine's blocks: they may be written until
  // they are published or free, also while they are in quarantine.
  sim::BlockUse use(uint32_t slot) const {
    sim::BlockUse use{.readers_verify = true};
    if (state(slot) == State::kQuarantined) use.state = BlockState::kQuarantined;
    for (const auto& [id, lease] : store_.leases_) {
      if (!lease.writes || !std::count(lease.slots.begin(), lease.slots.end(), slot)) continue;
      use.target_of = id;
      use.target_state = SequenceState::kReserved;
      use.writer_epoch = lease.owner_epoch;
    }
    return use;
  }

 private:
  using State = BlockStore::SlotState;
  State state(uint32_t slot) const { return store_.slots_[slot].state; }

  const BlockStore& store_;
};

}  // namespace crossdock

namespace crossdock::sim {

StoreProcess::StoreProcess(Network& network, Node& node, EventFd event)
    : network_(network), node_(node), event_(std::move(event)) {
  node_.on_event = [this] {
    news_ = true;
    event_.signal();
  };
}

std::vector<TransferEvent> StoreProcess::drain() {
  event_.drain();
  std::vector<TransferEvent> events(node_.events.begin(), node_.events.end());
  node_.events.clear();
  return events;
}

void StoreProcess::kill() {
  if (!node_.alive) return;
  index_ = nullptr;
  network_.end(node_);
}

void StoreProcess::watch(const BlockStore& index, uint64_t stride_bytes, uint64_t block_bytes) {
  index_ = &index;
  stride_bytes_ = stride_bytes;
  block_bytes_ = block_bytes;
  verified_.assign(BlockStoreInspector(index).num_slots(), 0);
}

bool StoreProcess::changed() {
  if (index_ == nullptr) return false;
  const BlockStoreStatistics now = index_->statistics();
  return std::exchange(seen_, now) != now;
}

std::optional<BlockUse> StoreProcess::use(uint64_t offset) const {
  if (index_ == nullptr) return std::nullopt;
  const BlockStoreInspector inspector(*index_);
  const uint64_t slot = offset / stride_bytes_;
  if (slot >= inspector.num_slots()) return std::nullopt;
  return inspector.use(static_cast<uint32_t>(slot));
}

void StoreProcess::check_index() const {
  if (index_ == nullptr) return;
  if (BlockStoreInspector(*index_).num_slots() * stride_bytes_ > node_.segment.size()) {
    std::fprintf(stderr, "the slots of a kvstore do not fit its segment\n");
    std::abort();
  }
  index_->check();
}

std::vector<uint32_t> StoreProcess::wrong_slots(bool all) {
  std::vector<uint32_t> wrong;
  if (index_ == nullptr) return wrong;
  const BlockStoreInspector inspector(*index_);
  for (uint32_t slot = 0; slot < inspector.num_slots(); ++slot) {
    const uint64_t generation = inspector.generation(slot);
    if (!inspector.published(slot) || (!all && verified_[slot] == generation)) continue;
    verified_[slot] = generation;
    if (corrupted_.contains({slot, generation})) continue;
    const XXH128_hash_t found = XXH3_128bits(node_.at(slot * stride_bytes_), block_bytes_);
    const ContentChecksum& expected = inspector.checksum(slot);
    if (found.low64 != expected.low || found.high64 != expected.high) wrong.push_back(slot);
  }
  return wrong;
}

bool StoreProcess::corrupt(Random& random) {
  if (index_ == nullptr) return false;
  const BlockStoreInspector inspector(*index_);
  std::vector<uint32_t> held;
  for (uint32_t slot = 0; slot < inspector.num_slots(); ++slot) {
    if (inspector.published(slot) || inspector.writing(slot)) held.push_back(slot);
  }
  if (held.empty()) return false;
  const uint32_t slot = held[random.below(held.size())];
  *node_.at(slot * stride_bytes_ + random.below(block_bytes_)) ^= std::byte{1};
  corrupted_.insert({slot, inspector.generation(slot)});
  return true;
}

}  // namespace crossdock::sim
