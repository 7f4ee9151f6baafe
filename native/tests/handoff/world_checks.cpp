// What must hold in every state of the world, and what must be left when all faults have stopped.
#include <algorithm>

#include "world.h"

namespace crossdock::testing {

const char* name(Invariant invariant) {
  switch (invariant) {
    case Invariant::kNoReuse: return "no block is reused while an operation may touch it";
    case Invariant::kCommitCovers: return "a commit is seen only after every byte it covers";
    case Invariant::kEndsOnce: return "every request ends exactly once";
    case Invariant::kConserved: return "blocks are conserved";
    case Invariant::kTokensEqual: return "tokens equal the oracle's";
    case Invariant::kTenantsApart: return "tenants never share blocks";
    case Invariant::kDrains: return "after faults stop, everything drains";
    case Invariant::kForgeriesFail: return "a forged message changes nothing";
    case Invariant::kContract: break;
  }
  return "a table asks only for what can be done";
}

void World::check_state() {
  std::vector<uint32_t> holders(free_.size(), 0);
  uint32_t num_quarantined = 0;
  for (const Handoff& h : handoffs_) {
    num_quarantined += h.hold == Hold::kQuarantined ? 1 : 0;
    for (const BlockId b : h.blocks) ++holders[b];
    if (h.hold == Hold::kActive && !intact(h)) {
      violate(Invariant::kTenantsApart, "a block that is decoded from holds somebody else's bytes");
    }
    if (h.p_ended && reads_sources(h)) {
      violate(Invariant::kNoReuse, "P's sources are free and still read");
    }
  }
  for (BlockId b = 0; b < free_.size(); ++b) {
    if (holders[b] > 1) violate(Invariant::kTenantsApart, "two handoffs hold one block");
    if (holders[b] + (free_[b] ? 1 : 0) != 1) {
      violate(Invariant::kConserved, "a block is neither free nor held, or both");
    }
  }
  if (d_.num_quarantined() != num_quarantined) {
    violate(Invariant::kConserved, "the table counts other quarantines than there are");
  }
  for (const Write& write : writes_) {
    if (!write.lands) continue;
    const Handoff& h = handoffs_[write.handoff];
    const bool may =
        holds(h, write.block) && (h.hold == Hold::kReserved || h.hold == Hold::kQuarantined);
    if (!may) violate(Invariant::kNoReuse, "a write may land in a block that is not its handoff's");
  }
}

// ---- the end ------------------------------------------------------------------------------------

// Applies whatever is under way until nothing is.
void World::settle() {
  for (int step = 0; step < 20'000; ++step) {
    const auto next = moves(false);
    if (next.empty() || violation_.has_value()) return;
    apply(next.front());
  }
  violate(Invariant::kDrains, "the world does not come to rest");
}

// What the router does: when P's RPC fails, it ends D's stream. Where D expected the handoff while
// the pair was up, it has learned of it by then, from P or from the end of the pair.
void World::end_orphans() {
  for (Handoff& h : handoffs_) {
    if (!h.expected || h.d_ended || !h.p_ended || h.p_ok) continue;
    const bool gone = h.epoch != senders_[h.sender].epoch && d_epoch_ == kFirstEpochOfD;
    if (!promise_broken_ && (h.met || gone)) {
      violate(Invariant::kDrains, "D never heard that P gave the handoff up, or is gone");
    }
    ++config_.faults.ends;
    apply({Move::Kind::kEnd, static_cast<uint32_t>(h.id.low)});
  }
}

void World::drain() {
  settle();
  end_orphans();
  settle();
  if (!promise_broken_) check_none_waits();
  pass_time();
  end_overdue();
  settle();
  pass_time();
  check_end();
}

// Bounds are for what is lost or invented: nothing else may need one to run out.
void World::check_none_waits() {
  if (d_.num_quarantined() > 0) violate(Invariant::kDrains, "a quarantine waits for its grace");
  for (const Handoff& h : handoffs_) {
    if (h.expected && !h.d_ended) violate(Invariant::kDrains, "D waits although nothing was lost");
    if (h.prepared && !h.p_ended) violate(Invariant::kDrains, "P waits although nothing was lost");
  }
}

// What the callers' deadlines do. Only a completion that is lost may need them.
void World::end_overdue() {
  for (Handoff& h : handoffs_) {
    const bool d_hangs = h.expected && !h.d_ended;
    const bool p_hangs = h.prepared && !h.p_ended;
    if ((d_hangs || p_hangs) && !h.completions_lost) {
      violate(Invariant::kDrains, "a handoff hangs until its caller's deadline");
    }
    if (d_hangs) {
      ++config_.faults.ends;
      apply({Move::Kind::kEnd, static_cast<uint32_t>(h.id.low)});
    }
    if (p_hangs) {
      ++config_.faults.cancels;
      apply({Move::Kind::kCancel, static_cast<uint32_t>(h.id.low)});
    }
  }
}

bool World::is_time_left() const {
  return d_.next_tick() != UINT64_MAX ||
         std::any_of(senders_.begin(), senders_.end(),
                     [](const Sender& s) { return s.table.next_tick() != UINT64_MAX; });
}

void World::pass_time() {
  for (int i = 0; i < 100 && !violation_.has_value() && is_time_left(); ++i) {
    if (d_.next_tick() != UINT64_MAX) tell_d(handoff_event::Tick{}, d_.next_tick());
    for (uint32_t s = 0; s < senders_.size(); ++s) {
      const uint64_t tick = senders_[s].table.next_tick();
      if (tick != UINT64_MAX) tell_p(s, handoff_event::Tick{}, tick);
    }
    settle();
    end_orphans();
    settle();
  }
}

void World::check_end() {
  if (d_.num_live() != 0) violate(Invariant::kDrains, "D keeps a handoff");
  for (const Sender& sender : senders_) {
    if (sender.table.num_live() == 0) continue;
    violate(Invariant::kDrains, "P keeps a handoff");
  }
  if (d_.num_quarantined() != 0) violate(Invariant::kDrains, "a quarantine never ends");
  if (num_free() != free_.size()) violate(Invariant::kConserved, "blocks of D are lost");
  for (const Handoff& h : handoffs_) {
    if (h.expected && !h.d_ended) violate(Invariant::kEndsOnce, "a handoff never ended at D");
    if (h.prepared && !h.p_ended) violate(Invariant::kEndsOnce, "a handoff never ended at P");
  }
  Faults but_forgeries = given_;
  but_forgeries.forgeries = config_.faults.forgeries;
  if (given_.forgeries == 0 || config_.faults != but_forgeries || forged_first_) return;
  for (const Handoff& h : handoffs_) {
    if (h.activated && h.p_ok) continue;
    violate(Invariant::kForgeriesFail, "a handoff failed of which messages were but forged");
  }
}

void World::violate(Invariant invariant, const std::string& what) {
  if (!violation_.has_value()) violation_ = Violation{invariant, what};
}

// ---- small questions ----------------------------------------------------------------------------

uint32_t World::num_committed() const {
  return static_cast<uint32_t>(std::count_if(handoffs_.begin(), handoffs_.end(),
                                             [](const Handoff& h) { return h.activated; }));
}

const World::Pair* World::current_pair(uint32_t sender) const {
  for (const Pair& p : pairs_) {
    if (p.sender == sender && !is_gone(p) && p.d_up && p.p_up) return &p;
  }
  return nullptr;
}

uint32_t World::num_free() const {
  return static_cast<uint32_t>(std::count(free_.begin(), free_.end(), true));
}

bool World::intact(const Handoff& h) const {
  return std::all_of(h.blocks.begin(), h.blocks.end(),
                     [&](BlockId b) { return memory_[b] == static_cast<int>(h.id.low); });
}

bool World::holds(const Handoff& h, BlockId block) const {
  return std::find(h.blocks.begin(), h.blocks.end(), block) != h.blocks.end();
}

bool World::in_flight(const Handoff& h) const {
  return std::any_of(writes_.begin(), writes_.end(),
                     [&](const Write& write) { return write.handoff == h.id.low && write.lands; });
}

bool World::reads_sources(const Handoff& h) const {
  return std::any_of(writes_.begin(), writes_.end(), [&](const Write& write) {
    return write.handoff == h.id.low && write.reads_source;
  });
}

// Of everything that decides what may follow; numbers are written as bytes.
std::string World::fingerprint() const {
  std::string text = d_.describe();
  for (const Sender& sender : senders_) text += sender.table.describe();
  const auto add = [&](const auto& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(config_.faults);
  add(d_epoch_);
  add(promise_broken_);
  add(forged_first_);
  for (const Sender& sender : senders_) {
    add(sender.epoch);
    add(sender.loss_told);
  }
  for (const Handoff& h : handoffs_) {
    for (const bool flag :
         {h.met, h.expected, h.prepared, h.begun, h.router_gone, h.d_ended, h.p_ended, h.p_ok,
          h.reserve_asked, h.verify_asked, h.writing, h.stopping, h.arrived_told, h.stopped_told,
          h.completions_lost, h.activated}) {
      add(flag);
    }
    add(h.hold);
    add(h.epoch);
    add(h.pair);
    for (const BlockId block : h.blocks) add(block);
    text += "|";
  }
  add(pairs_.size());
  for (const Pair& p : pairs_) {
    for (const bool flag :
         {p.d_up, p.d_closed, p.d_proven, p.p_up, p.p_closed, p.d_heard, p.p_heard})
      add(flag);
    add(p.p_epoch);
    add(p.d_epoch);
    for (const auto* messages : {&p.to_d, &p.to_p}) {
      for (const HandoffMessage& message : *messages) {
        const auto bytes = encode(message);
        text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
      text += "|";
    }
  }
  add(writes_.size());
  for (const Write& write : writes_) {
    add(write.handoff);
    add(write.block);
    add(write.pair);
    add(write.reads_source);
    add(write.lands);
  }
  text += "|";
  for (const int content : memory_) add(content);
  for (const bool free : free_) add(free);
  return text;
}

}  // namespace crossdock::testing
