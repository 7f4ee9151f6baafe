// Scheduler::check, apart from the scheduler proper.
#include <cstdio>
#include <cstdlib>

#include "scheduler_impl.h"

namespace crossdock {
namespace {

void require(bool condition, const char* what, uint64_t subject) {
  if (condition) return;
  std::fprintf(stderr, "Scheduler::check: %s (%llu)\n", what,
               static_cast<unsigned long long>(subject));
  std::abort();
}

}  // namespace

void Scheduler::Impl::check_sequences() const {
  uint32_t num_quarantined_blocks = 0;
  uint32_t num_revoked = 0;
  uint32_t num_revoked_blocks = 0;
  for (uint32_t slot = 0; slot < slots.size(); ++slot) {
    const Sequence& s = slots[slot];
    if (!s.living) continue;
    const auto it = slot_by_id.find(s.id);
    require(it != slot_by_id.end() && it->second == slot, "an id does not lead to its slot", s.id);
    require(s.num_tokens() >= s.num_prompt && s.num_tokens() <= s.num_tokens_max, "tokens", s.id);
    require(s.chain.size() == s.num_tokens() / kBlockTokens, "the chain lags the tokens", s.id);
    switch (s.state) {
      case SequenceState::kWaiting:
        require(s.table.empty() && s.num_computed == 0, "a waiting sequence holds blocks", s.id);
        break;
      case SequenceState::kLoading:
      case SequenceState::kRunning:
        require(s.num_computed < s.num_tokens(), "the last known token is computed", s.id);
        [[fallthrough]];
      case SequenceState::kHeld:
        require(s.table.size() >= blocks_for(s.num_computed), "the table is short", s.id);
        require(s.num_published <= s.num_computed / kBlockTokens, "published too early", s.id);
        require(
            s.state == SequenceState::kLoading || s.num_published == s.num_computed / kBlockTokens,
            "a full block is not published", s.id);
        break;
      case SequenceState::kReserved:
        require(s.table.size() == blocks_for(s.num_prompt), "a grant lacks blocks", s.id);
        num_revoked += s.revoking;
        num_revoked_blocks += s.revoking ? static_cast<uint32_t>(s.unmatched().size()) : 0;
        break;
      case SequenceState::kQuarantined:
        num_quarantined_blocks += static_cast<uint32_t>(s.unmatched().size());
        for (const BlockId block : s.unmatched()) {
          require(pool.state(block) == BlockState::kQuarantined, "a block left quarantine", block);
        }
        break;
    }
  }
  require(num_quarantined_blocks == pool.num_quarantined(), "quarantined blocks without a sequence",
          pool.num_quarantined());
  require(num_revoked == num_revoking, "num_revoking", num_revoking);
  require(num_revoked_blocks == num_revoking_blocks, "num_revoking_blocks", num_revoking_blocks);
}

void Scheduler::Impl::check_counts() const {
  uint32_t counts[6] = {};
  uint32_t num_living = 0, num_awaits = 0, num_grow = 0;
  for (const Sequence& s : slots) {
    if (!s.living) continue;
    ++num_living;
    ++counts[static_cast<size_t>(s.state)];
    num_awaits += s.awaits_load;
    num_grow += s.state == SequenceState::kRunning && s.can_grow();
  }
  const auto count = [&](SequenceState state) { return counts[static_cast<size_t>(state)]; };
  require(num_living == slot_by_id.size(), "an id has no slot", num_living);
  require(num_living + closing.size() + free_slots.size() == slots.size(), "a slot is lost",
          num_living);
  require(count(SequenceState::kLoading) == num_loading, "num_loading", num_loading);
  require(count(SequenceState::kReserved) == num_reserved, "num_reserved", num_reserved);
  require(count(SequenceState::kRunning) == running.size(), "running", running.size());
  require(num_awaits == num_awaiting, "num_awaiting", num_awaiting);
  require(num_grow == num_growing, "num_growing", num_growing);
  require(count(SequenceState::kWaiting) == queue.size() + num_awaiting, "queue", queue.size());
  require(num_active() <= config.num_sequences_max, "more sequences than allowed", num_active());
  for (size_t i = 0; i < running.size(); ++i) {
    require(slots[running[i]].state == SequenceState::kRunning, "a slot of running does not run",
            running[i]);
    require(i == 0 || slots[running[i - 1]].arrival < slots[running[i]].arrival,
            "running is out of order", running[i]);
  }
  uint32_t num_queued = 0;
  for (uint32_t i = queue.front(); i != kNoSlot; i = queue.after(i)) {
    const Sequence& s = slots[i];
    ++num_queued;
    require(s.state == SequenceState::kWaiting && !s.awaits_load, "the queue holds another", s.id);
    if (queue.after(i) == kNoSlot) continue;
    const Sequence& next = slots[queue.after(i)];
    require(s.was_preempted == next.was_preempted ? s.arrival < next.arrival : s.was_preempted,
            "the queue is out of order", s.id);
  }
  require(num_queued == queue.size(), "the queue lost a link", num_queued);
}

void Scheduler::check() const {
  std::vector<std::span<const BlockId>> tables;
  for (const Sequence& s : impl_->slots) tables.push_back(s.referenced());
  std::vector<BlockId> pinned;
  for (BlockId block = 0; block < impl_->pins.size(); ++block) {
    pinned.insert(pinned.end(), impl_->pins[block], block);
  }
  tables.emplace_back(pinned);
  require(pinned.size() == impl_->num_pins, "num_pins", impl_->num_pins);
  impl_->pool.check(tables);
  impl_->tree.check();
  impl_->check_sequences();
  impl_->check_counts();
}

}  // namespace crossdock
