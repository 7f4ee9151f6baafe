// What this engine has moved to and from each decode peer, and what that tells about the next read.
//
// A decode peer that continued a prompt of ours holds blocks of its continuation that nobody else
// has. Reading them takes as long as their bytes at the speed that the pair has shown; computing
// them anew takes what the scheduler predicts. `reading_pays` compares the two.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>

#include "crossdock/handoff/handoff_table.h"
#include "crossdock/prefix/block_hash.h"

namespace crossdock {

// How fast the bytes of one peer moved lately, in either direction.
class TransferSpeed {
 public:
  void observe(uint64_t bytes, uint64_t duration_ns);
  double predicted_ns(uint64_t bytes) const { return ns_per_byte_ * static_cast<double>(bytes); }

 private:
  double ns_per_byte_ = 0;  // 0: nothing was measured
};

// Whether a read is expected to be done no later than computing anew would be. A tick is a
// microsecond. Without a figure for either side the read is tried: that is how the figure is got.
constexpr bool reading_pays(double read_ns, double compute_ticks) {
  return compute_ticks == 0 || read_ns <= 1000 * compute_ticks;
}

struct PairTraffic {
  uint64_t bytes_written = 0;
  uint64_t bytes_read = 0;
  uint64_t num_operations = 0;  // one-sided, after merging; reads, writes and fences
  uint64_t num_handoffs = 0;    // committed
  uint64_t exposed_ns = 0;      // from the first token to the acknowledged commit, summed over them
  uint64_t num_blocks_read = 0;
  uint64_t num_reads_declined = 0;  // computing was predicted to be faster
  uint64_t num_reads_failed = 0;    // recomputed instead
};
// Every field, by the name it is reported under.
struct PairTrafficField {
  const char* name;
  uint64_t PairTraffic::* field;
};
std::span<const PairTrafficField> pair_traffic_fields();

class PairLedger {
 public:
  // Adds to the pair and to the total.
  void count(PairId pair, uint64_t PairTraffic::* field, uint64_t by = 1);
  TransferSpeed& speed(PairId pair) { return pairs_[pair].speed; }

  // A prompt went to this peer, which decodes on from it; `tail` is its last whole block.
  void handed_off(PairId pair, const BlockHash& tail);
  // Whether the chain continues such a prompt, so that the peer may hold more of it than we do.
  bool may_hold_more(PairId pair, std::span<const BlockHash> chain) const;

  const PairTraffic& total() const { return total_; }
  PairTraffic traffic(PairId pair) const;
  void forget(PairId pair) { pairs_.erase(pair); }

 private:
  struct Pair {
    PairTraffic traffic;
    TransferSpeed speed;
    std::unordered_set<BlockHash> tails;
  };
  std::map<PairId, Pair> pairs_;
  PairTraffic total_;
};

}  // namespace crossdock
