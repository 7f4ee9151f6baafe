// The bounded waits of one side's handoffs, earliest first.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include "crossdock/handoff/messages.h"

namespace crossdock {

inline constexpr uint64_t kNoDeadline = UINT64_MAX;

class Deadlines {
 public:
  // Of a wait that begins now; a bound that is too far to count is none.
  static uint64_t after(uint64_t tick, uint64_t wait) {
    return wait > kNoDeadline - tick ? kNoDeadline : tick + wait;
  }

  // `current` is kept by the handoff's record, which has at most one deadline.
  void arm(const HandoffId& id, uint64_t& current, uint64_t deadline) {
    if (current != kNoDeadline) by_tick_.erase({current, id});
    current = deadline;
    if (deadline != kNoDeadline) by_tick_.insert({deadline, id});
  }
  uint64_t next_tick() const { return by_tick_.empty() ? kNoDeadline : by_tick_.begin()->first; }
  std::optional<HandoffId> due(uint64_t tick) const {
    if (next_tick() > tick || by_tick_.empty()) return std::nullopt;
    return by_tick_.begin()->second;
  }

 private:
  std::set<std::pair<uint64_t, HandoffId>> by_tick_;
};

}  // namespace crossdock
