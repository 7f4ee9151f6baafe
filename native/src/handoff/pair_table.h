// The pairs that handoffs run on. A pair that broke stays until it is closed and no living handoff
// refers to it, because its end is what proves that their blocks are no longer touched.
#pragma once

#include <cassert>
#include <cstdint>
#include <map>

#include "crossdock/handoff/handoff_table.h"

namespace crossdock {

struct Pair {
  uint64_t peer_epoch = 0;
  uint64_t incarnation = 0;
  bool up = false;
  bool heard = false;  // it has brought an authentic message
  bool closed = false;
  uint32_t num_handoffs = 0;  // living ones that refer to it, on either side
  uint32_t num_pending = 0;   // opens of it that wait for their Expect
};

class PairTable {
 public:
  Pair* find(PairId id) {
    const auto it = pairs_.find(id);
    return it == pairs_.end() ? nullptr : &it->second;
  }
  const Pair* find(PairId id) const { return const_cast<PairTable*>(this)->find(id); }
  bool is_up(PairId id) const {
    const Pair* pair = find(id);
    return pair != nullptr && pair->up;
  }
  void add(PairId id, Pair pair) { pairs_.emplace(id, pair); }
  void retain(PairId id) {
    Pair* pair = find(id);
    assert(pair != nullptr && "a living handoff keeps its pair");
    ++pair->num_handoffs;
  }
  void drop(PairId id) {
    Pair* pair = find(id);
    assert(pair != nullptr && pair->num_handoffs > 0);
    --pair->num_handoffs;
    forget_if_over(id);
  }
  void forget_if_over(PairId id) {
    const Pair* pair = find(id);
    if (pair != nullptr && pair->closed && pair->num_handoffs == 0) pairs_.erase(id);
  }
  const std::map<PairId, Pair>& all() const { return pairs_; }

 private:
  std::map<PairId, Pair> pairs_;
};

// What one event may read and change beside the records of its own side.
struct Exchange {
  uint64_t tick = 0;
  PairTable& pairs;
  HandoffCounters& counters;
  std::vector<HandoffAction>& actions;
  // Pairs to be broken once the event itself is done, with the reason.
  std::vector<std::pair<PairId, std::string>> to_break;

  // Nothing is said on a pair that is not up.
  void send(PairId pair, HandoffMessage message) {
    if (pairs.is_up(pair)) {
      actions.push_back(handoff_action::Send{pair, std::move(message)});
    }
  }
};

}  // namespace crossdock
