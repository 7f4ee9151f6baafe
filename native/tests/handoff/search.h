// Every interleaving of a small world, up to equal states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "world.h"

namespace crossdock::testing {

inline constexpr size_t kStatesMax = 400'000;

struct SearchResult {
  size_t num_states = 0;
  size_t num_transitions = 0;
  uint32_t depth = 0;      // in moves, of the deepest state found
  bool exhausted = false;  // there is no state beyond those found
  std::optional<Violation> violation;
  std::string moves;  // the fewest that lead to it
};

// To config.depth_max moves from the start. The invariants are checked in every state, and from
// every state faults may stop for good. States are known by 128 bits of a hash.
SearchResult search(const WorldConfig& config);

}  // namespace crossdock::testing
