// What is remembered of handoffs that have ended: enough to answer late messages, bounded in
// number, the oldest forgotten first.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "crossdock/handoff/messages.h"

namespace crossdock {

template <typename State>
class Tombstones {
 public:
  struct Tombstone {
    State state{};
    uint32_t attempt = 0;
    bool has_pair = false;  // false: it ended before it met one
    uint32_t pair = 0;
  };

  explicit Tombstones(uint32_t num_max) : num_max_(num_max) {}

  void add(const HandoffId& id, const Tombstone& tombstone) {
    if (num_max_ == 0) return;
    if (!by_id_.insert_or_assign(id, tombstone).second) return;
    order_.push_back(id);
    if (order_.size() <= num_max_) return;
    by_id_.erase(order_.front());
    order_.pop_front();
  }
  const Tombstone* find(const HandoffId& id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &it->second;
  }
  const std::map<HandoffId, Tombstone>& all() const { return by_id_; }

 private:
  uint32_t num_max_;
  std::map<HandoffId, Tombstone> by_id_;
  std::deque<HandoffId> order_;
};

}  // namespace crossdock
