// What happens in the world.
#include "world.h"

#include <algorithm>
#include <cassert>

#include "world_messages.h"

namespace crossdock::testing {

World::World(const WorldConfig& config)
    : config_(config),
      given_(config.faults),
      d_(make_table()),
      memory_(config.num_blocks, -1),
      free_(config.num_blocks, true) {
  for (uint32_t i = 0; i < config.num_senders; ++i) {
    senders_.push_back({make_table(), 100 * (uint64_t{i} + 1)});
  }
  for (uint32_t i = 0; i < config.num_handoffs; ++i) {
    Handoff handoff;
    handoff.id = {0xABC, i};
    handoff.sender = i % config.num_senders;
    handoff.num_matched = i % 3 == 1 ? 1 : 0;
    handoffs_.push_back(handoff);
  }
  for (uint32_t i = 0; i < config.num_senders; ++i) connect(i);
}

void World::apply(const Move& move) {
  using Kind = Move::Kind;
  const uint32_t i = move.index;
  switch (move.kind) {
    case Kind::kDeliver:
    case Kind::kDuplicate:
    case Kind::kDrop: deliver(move); break;
    case Kind::kStray:
      --config_.faults.strays;
      stray(handoffs_[i / kNumStrays], static_cast<Stray>(i % kNumStrays));
      break;
    case Kind::kForge:
      --config_.faults.forgeries;
      forge(handoffs_[i / kNumKinds], i % kNumKinds);
      break;
    case Kind::kLand: land(i); break;
    case Kind::kWriteFails: {
      --config_.faults.breaks;
      const Write write = writes_[i];
      Pair& broken = pair(write.pair);
      tell_p(broken.sender, handoff_event::WritesFailed{handoffs_[write.handoff].id,
                                                        {StatusCode::kUnavailable, "endpoint"}});
      break_p(broken);
      break;
    }
    case Kind::kBreakD:
    case Kind::kBreakP:
    case Kind::kCloseD:
    case Kind::kCloseP:
    case Kind::kProcessGone: apply_to_pair(move.kind, pairs_[i]); break;
    case Kind::kConnect: connect(i); break;
    case Kind::kCrashD: crash_d(); break;
    case Kind::kCrashP: crash_p(i); break;
    case Kind::kPeerLost: {
      Sender& sender = senders_[i];
      if (sender.loss_told) --config_.faults.false_losses;
      tell_d(handoff_event::PeerLost{sender.loss_told ? sender.epoch : sender.epoch - 1});
      sender.loss_told = true;
      break;
    }
    case Kind::kTickD:
      --config_.faults.ticks;
      tell_d(handoff_event::Tick{}, d_.next_tick());
      break;
    case Kind::kTickP:
      --config_.faults.ticks;
      tell_p(i, handoff_event::Tick{}, senders_[i].table.next_tick());
      break;
    default: apply_to_handoff(move.kind, handoffs_[i]); break;
  }
  prune_writes();
  check_state();
}

void World::apply_to_handoff(Move::Kind kind, Handoff& h) {
  using Kind = Move::Kind;
  switch (kind) {
    case Kind::kExpect:
    case Kind::kPrepare: return call(kind, h);
    case Kind::kBegin: h.begun = true; return tell_p(h.sender, handoff_event::Begin{h.id});
    case Kind::kReserve: return reserve(h);
    case Kind::kRefuse:
      if (num_free() >= h.num_blocks) --config_.faults.refusals;
      h.reserve_asked = false;
      return tell_d(
          handoff_event::Reserved{h.id, Status(StatusCode::kResourceExhausted, "no room"), 0, {}});
    case Kind::kVerify:
      h.verify_asked = false;
      return tell_d(handoff_event::Verified{h.id, intact(h)});
    case Kind::kCorrupt:
      --config_.faults.corruptions;
      memory_[h.blocks.back()] = -1;
      return;
    case Kind::kWritesArrived:
    case Kind::kWritesStopped: return finish_writes(kind, h);
    case Kind::kLoseCompletions:
      --config_.faults.lost_completions;
      h.completions_lost = promise_broken_ = true;
      return;
    case Kind::kRouterDies:
      --config_.faults.router_deaths;
      h.router_gone = true;
      return;
    case Kind::kFinish:
    case Kind::kEnd:
      if (kind == Kind::kEnd && !h.router_gone) --config_.faults.ends;
      h.d_ended = true;
      if (h.activated) free_blocks(h);
      return tell_d(handoff_event::End{h.id, kind == Kind::kFinish ? Status() : cancelled()});
    default:
      assert(kind == Kind::kCancel);
      if (!h.router_gone) --config_.faults.cancels;
      return tell_p(h.sender, handoff_event::Cancel{h.id, cancelled()});
  }
}

void World::call(Move::Kind kind, Handoff& h) {
  const uint32_t num_tokens = h.num_blocks * kBlockTokens;
  if (!h.expected && !h.prepared) {  // the router names P and its pair as it sees them now
    h.epoch = senders_[h.sender].epoch;
    h.pair = current_pair(h.sender) != nullptr ? current_pair(h.sender)->id : 0;
  }
  if (kind == Move::Kind::kExpect) {
    h.expected = true;
    h.met = h.pair != 0 && pair(h.pair).d_up;
    return tell_d(handoff_event::Expect{h.id, 1, h.epoch, num_tokens});
  }
  h.prepared = true;
  if (h.epoch != senders_[h.sender].epoch) {
    h.p_ended = true;  // its process is gone: the RPC fails
    return;
  }
  tell_p(h.sender, handoff_event::Prepare{h.id, 1, h.pair, num_tokens});
}

void World::reserve(Handoff& h) {
  h.reserve_asked = false;
  h.blocks.clear();
  for (BlockId b = 0; b < free_.size() && h.blocks.size() < h.num_blocks; ++b) {
    if (!free_[b]) continue;
    free_[b] = false;
    // What D matched is resident already.
    memory_[b] = h.blocks.size() < h.num_matched ? static_cast<int>(h.id.low) : -1;
    h.blocks.push_back(b);
  }
  h.hold = Hold::kReserved;
  tell_d(handoff_event::Reserved{h.id, Status(), h.num_matched, h.blocks});
}

void World::finish_writes(Move::Kind kind, Handoff& h) {
  if (kind == Move::Kind::kWritesStopped) {
    h.stopped_told = true;
    return tell_p(h.sender, handoff_event::WritesStopped{h.id});
  }
  h.arrived_told = true;
  handoff_event::WritesArrived arrived{h.id, {true_choice(h.id)}, {}};
  arrived.checksum.fill(1);
  tell_p(h.sender, arrived);
}

void World::apply_to_pair(Move::Kind kind, Pair& p) {
  using Kind = Move::Kind;
  switch (kind) {
    case Kind::kBreakD:
      if (p.p_up) --config_.faults.breaks;
      return break_d(p);
    case Kind::kBreakP:
      if (p.d_up) --config_.faults.breaks;
      return break_p(p);
    case Kind::kCloseD: return close_d(p);
    case Kind::kCloseP: return close_p(p);
    default:
      assert(kind == Kind::kProcessGone);
      p.d_proven = true;
      return tell_d(handoff_event::PairClosed{p.id, true});
  }
}

void World::deliver(Move move) {
  Pair& on = pairs_[move.index / kMessagesMax / 2];
  const bool to_d = move.index / kMessagesMax % 2 == 0;
  auto& messages = to_d ? on.to_d : on.to_p;
  const auto it = messages.begin() + move.index % kMessagesMax;
  const HandoffMessage message = *it;
  if (move.kind == Move::Kind::kDuplicate) {
    --config_.faults.duplicates;
    messages.push_back(message);
    return;
  }
  messages.erase(it);
  if (move.kind == Move::Kind::kDrop) {
    --config_.faults.drops;
    promise_broken_ = true;
    return;
  }
  arrive(on, to_d, message, false);
}

void World::stray(Handoff& h, Stray stray) {
  promise_broken_ = true;
  Pair& on = pair(stray_pair(h, stray)->id);
  arrive(on, is_to_d(stray), stray_message(h.id, h.num_blocks, on.id, stray), false);
}

void World::forge(Handoff& h, uint32_t kind) {
  Pair& on = pair(h.pair);
  const HandoffKey key{h.id, 1, incarnation_of(h.pair)};
  const HandoffMessage message = forged_message(key, h.num_blocks, kind);
  arrive(on, is_to_d(message), message, true);
}

void World::land(uint32_t index) {
  const Write write = writes_[index];
  writes_.erase(writes_.begin() + index);
  if (write.lands) memory_[write.block] = static_cast<int>(write.handoff);
}

void World::connect(uint32_t sender) {
  Pair p;
  p.id = static_cast<PairId>(pairs_.size()) + 1;
  p.sender = sender;
  p.p_epoch = senders_[sender].epoch;
  p.d_epoch = d_epoch_;
  pairs_.push_back(p);
  const uint64_t incarnation = incarnation_of(p.id);
  tell_d(handoff_event::PairUp{p.id, p.p_epoch, incarnation});
  tell_p(sender, handoff_event::PairUp{p.id, d_epoch_, incarnation});
}

void World::close_d(Pair& p) {
  p.d_closed = true;
  // Over tcp nothing gets through a closed endpoint. Over shared memory only the end of the copying
  // process (or its own close, which the fronts wait for before they make a new pair) is an end.
  p.d_proven = config_.transport == WorldTransport::kTcp || is_gone(p);
  if (config_.transport == WorldTransport::kTcp) stop_landing(p.id);
  tell_d(handoff_event::PairClosed{p.id, p.d_proven});
}

void World::close_p(Pair& p) {
  p.p_closed = true;
  if (config_.transport == WorldTransport::kShm) stop_landing(p.id);
  for (Write& write : writes_) {
    if (write.pair == p.id) write.reads_source = false;
  }
  tell_p(p.sender, handoff_event::PairClosed{p.id, false});
}

// D's process is gone, and with it its memory, its books and its callers' streams.
void World::crash_d() {
  --config_.faults.d_crashes;
  d_ = make_table();
  ++d_epoch_;
  for (Pair& p : pairs_) {
    p.d_up = false;
    p.d_closed = p.d_proven = true;
    p.to_d.clear();
  }
  for (Write& write : writes_) write.lands = false;
  for (Handoff& h : handoffs_) {
    if (h.expected) h.d_ended = true;
    h.reserve_asked = h.verify_asked = false;
    h.hold = Hold::kNothing;
    h.blocks.clear();
  }
  std::fill(memory_.begin(), memory_.end(), -1);
  std::fill(free_.begin(), free_.end(), true);
}

void World::crash_p(uint32_t index) {
  --config_.faults.p_crashes;
  Sender& sender = senders_[index];
  sender.table = make_table();
  for (Pair& p : pairs_) {
    if (p.sender != index || is_gone(p)) continue;
    p.p_up = false;
    p.p_closed = true;
    p.to_p.clear();
    if (config_.transport == WorldTransport::kShm) stop_landing(p.id);
    for (Write& write : writes_) {
      if (write.pair == p.id) write.reads_source = false;
    }
  }
  for (Handoff& h : handoffs_) {
    if (h.sender != index || h.epoch != sender.epoch) continue;
    if (h.prepared) h.p_ended = true;
    h.writing = false;
  }
  ++sender.epoch;
  sender.loss_told = false;
}

void World::stop_landing(PairId id) {
  for (Write& write : writes_) {
    if (write.pair == id) write.lands = false;
  }
}

void World::prune_writes() {
  std::erase_if(writes_, [](const Write& write) { return !write.lands && !write.reads_source; });
}

}  // namespace crossdock::testing
