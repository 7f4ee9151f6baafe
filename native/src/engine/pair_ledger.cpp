#include "crossdock/engine/pair_ledger.h"

#include <algorithm>

namespace crossdock {
namespace {

// A forgotten tail costs a chunk: the grant is then looked at after the first one.
constexpr size_t kTailsMax = 65536;

constexpr PairTrafficField kFields[] = {
    {"bytes_written", &PairTraffic::bytes_written},
    {"bytes_read", &PairTraffic::bytes_read},
    {"num_operations", &PairTraffic::num_operations},
    {"num_handoffs", &PairTraffic::num_handoffs},
    {"exposed_ns", &PairTraffic::exposed_ns},
    {"num_blocks_read", &PairTraffic::num_blocks_read},
    {"num_reads_declined", &PairTraffic::num_reads_declined},
    {"num_reads_failed", &PairTraffic::num_reads_failed},
};
static_assert(sizeof kFields / sizeof kFields[0] == sizeof(PairTraffic) / sizeof(uint64_t));

}  // namespace

std::span<const PairTrafficField> pair_traffic_fields() { return kFields; }

void TransferSpeed::observe(uint64_t bytes, uint64_t duration_ns) {
  if (bytes == 0) return;
  const double sample = static_cast<double>(duration_ns) / static_cast<double>(bytes);
  ns_per_byte_ = ns_per_byte_ == 0 ? sample : 0.8 * ns_per_byte_ + 0.2 * sample;
}

void PairLedger::count(PairId pair, uint64_t PairTraffic::* field, uint64_t by) {
  pairs_[pair].traffic.*field += by;
  total_.*field += by;
}

void PairLedger::handed_off(PairId pair, const BlockHash& tail) {
  auto& tails = pairs_[pair].tails;
  if (tails.size() >= kTailsMax) tails.clear();
  tails.insert(tail);
}

bool PairLedger::may_hold_more(PairId pair, std::span<const BlockHash> chain) const {
  const auto it = pairs_.find(pair);
  if (it == pairs_.end()) return false;
  return std::any_of(chain.begin(), chain.end(),
                     [&](const BlockHash& hash) { return it->second.tails.contains(hash); });
}

PairTraffic PairLedger::traffic(PairId pair) const {
  const auto it = pairs_.find(pair);
  return it == pairs_.end() ? PairTraffic{} : it->second.traffic;
}

}  // namespace crossdock
