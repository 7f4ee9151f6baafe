// A process as the network knows it: its memory, its state, what it has yet to hear.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "crossdock/transfer/transfer.h"

namespace crossdock::sim {

using EngineId = uint32_t;

// What is to go wrong next.
struct PreparedFaults {
  uint64_t posts_to_fail = 0;
  uint64_t completions_to_lose = 0;
  uint32_t operations_to_live = 0;  // 0: it is not to die by their count
};

struct Node {
  EngineId id = 0;
  std::string host;
  EndpointDescriptor descriptor;
  std::vector<std::byte> segment;
  bool alive = true;
  bool stopped = false;
  // What its transfer thread has for its loop.
  std::deque<TransferEvent> events;
  // Called with each of them, for a loop that is not the world's.
  std::function<void()> on_event;
  // What its transfer thread will do once it is continued.
  std::deque<std::function<void()>> deferred;

  PreparedFaults prepared;

  uint64_t epoch() const { return descriptor.epoch; }
  bool running() const { return alive && !stopped; }
  std::byte* at(uint64_t offset) { return segment.data() + offset; }
};

}  // namespace crossdock::sim
