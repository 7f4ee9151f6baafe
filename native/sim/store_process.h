// The native part of a kvstore's process: its segment as `crossdock._native.Segment` has it, and a
// look at the index of its slots. Its front is Python; it posts no operation of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crossdock/sys/shared_memory.h"
#include "crossdock/tiers/block_store.h"
#include "memory_checker.h"
#include "network.h"
#include "node.h"

namespace crossdock::sim {

class StoreProcess {
 public:
  StoreProcess(Network& network, Node& node, EventFd event);
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  Node& node() { return node_; }
  // ---- for its front
  int event_fd() const { return event_.fd(); }
  void submit(Operation operation) { network_.submit(node_, std::move(operation)); }
  std::vector<TransferEvent> drain();

  // ---- for the world
  // Its front has something to read since the last call.
  bool take_news() { return std::exchange(news_, false); }
  bool has_news() const { return news_; }
  void kill();

  // ---- for checkers
  // The index of the slots, which lives as long as the process. A block's bytes are those that its
  // checksum covers.
  void watch(const BlockStore& index, uint64_t stride_bytes, uint64_t block_bytes);
  // Whether the index has changed since the last call.
  bool changed();
  // Nothing before the first engine connected.
  std::optional<BlockUse> use(uint64_t offset) const;
  // Aborts unless the index agrees with itself and fits the segment.
  void check_index() const;
  // Slots that are published while their bytes are not those of their checksum, though nobody has
  // corrupted them. Looks at what was published since the last call, or at all of them.
  std::vector<uint32_t> wrong_slots(bool all);
  // Flips a bit of a block that is published or being written. False where there is none.
  bool corrupt(Random& random);

 private:
  Network& network_;
  Node& node_;
  EventFd event_;
  bool news_ = false;
  const BlockStore* index_ = nullptr;
  uint64_t stride_bytes_ = 0;
  uint64_t block_bytes_ = 0;
  BlockStoreStatistics seen_;
  std::vector<uint64_t> verified_;  // by slot, the generation whose bytes were right
  std::set<std::pair<uint32_t, uint64_t>> corrupted_;  // slot, generation
};

}  // namespace crossdock::sim
