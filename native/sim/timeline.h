// What a world has one of: the time, what is due when, chance, and the record of what happened.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random.h"

namespace crossdock::sim {

inline constexpr uint64_t kStartNs = 1'000'000'000;

// Counts over a whole world.
struct Statistics {
  uint64_t turns = 0;
  uint64_t layers = 0;
  uint64_t computed_tokens = 0;
  uint64_t messages = 0;
  uint64_t messages_tampered = 0;
  uint64_t operations = 0;
  uint64_t posts_failed = 0;
  uint64_t completions_lost = 0;
  uint64_t pieces_landed = 0;
  uint64_t bytes_landed = 0;
  uint64_t landed_late = 0;         // their sender had died
  uint64_t landed_quarantined = 0;  // in blocks that their owner had given up
  uint64_t pieces_dropped = 0;      // by the end of an endpoint or process
  uint64_t blocks_corrupted = 0;    // of kvstores
  uint64_t pairs_ready = 0;
  uint64_t pairs_broken = 0;
};

class Timeline {
 public:
  using Action = std::function<void()>;

  Timeline(uint64_t seed, bool trace) : random(seed), traces_(trace) {}

  uint64_t now_ns() const { return now_ns_; }
  void move_to(uint64_t ns);

  // Actions of one moment run in the order in which they were scheduled.
  void schedule(uint64_t at_ns, Action action);
  std::optional<uint64_t> next_ns() const;
  // Moves to the next moment and runs one action of it.
  void run_next();

  // Enters what happened into the digest and, in words, into the trace. `what` is a literal.
  void note(const char* what, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0);
  std::string digest() const;
  std::vector<std::string> trace() const { return {trace_.begin(), trace_.end()}; }

  Random random;
  Statistics statistics;

 private:
  struct Entry {
    uint64_t at_ns = 0;
    uint64_t order = 0;
    Action action;
    bool operator>(const Entry& other) const {
      return std::pair(at_ns, order) > std::pair(other.at_ns, other.order);
    }
  };

  uint64_t now_ns_ = kStartNs;
  uint64_t num_scheduled_ = 0;
  std::vector<Entry> heap_;  // the earliest first
  std::array<uint64_t, 2> digest_{1, 2};
  const bool traces_;
  std::deque<std::string> trace_;
};

}  // namespace crossdock::sim
