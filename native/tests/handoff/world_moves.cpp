// What may happen next in the world.
#include <algorithm>
#include <iterator>

#include "world.h"
#include "world_messages.h"

namespace crossdock::testing {

std::string to_string(const Move& move) {
  static constexpr const char* kNames[] = {
      "expect",  "prepare",        "begin",          "deliver",     "duplicate",        "drop",
      "stray",   "forge",          "land",           "reserve",     "refuse",           "verify",
      "corrupt", "writes arrived", "writes stopped", "write fails", "lose completions", "finish",
      "end",     "cancel",         "router dies",    "break D",     "break P",          "close D",
      "close P", "process gone",   "connect",        "crash D",     "crash P",          "peer lost",
      "tick D",  "tick P"};
  static_assert(std::size(kNames) == static_cast<size_t>(Move::Kind::kTickP) + 1);
  return std::string(kNames[static_cast<size_t>(move.kind)]) + " " + std::to_string(move.index);
}

std::vector<Move> World::moves(bool with_faults) const {
  std::vector<Move> moves;
  message_moves(with_faults, moves);
  for (uint32_t i = 0; i < writes_.size(); ++i) {
    moves.push_back({Move::Kind::kLand, i});
    if (with_faults && config_.faults.breaks > 0 && pair(writes_[i].pair).p_up) {
      moves.push_back({Move::Kind::kWriteFails, i});
    }
  }
  for (uint32_t i = 0; i < handoffs_.size(); ++i) handoff_moves(i, with_faults, moves);
  for (uint32_t i = 0; i < pairs_.size(); ++i) pair_moves(i, with_faults, moves);
  for (uint32_t i = 0; i < senders_.size(); ++i) sender_moves(i, with_faults, moves);
  if (with_faults && config_.faults.d_crashes > 0) moves.push_back({Move::Kind::kCrashD, 0});
  if (with_faults && config_.faults.ticks > 0 && d_.next_tick() != UINT64_MAX) {
    moves.push_back({Move::Kind::kTickD, 0});
  }
  return moves;
}

void World::message_moves(bool with_faults, std::vector<Move>& moves) const {
  for (uint32_t i = 0; i < 2 * pairs_.size(); ++i) {
    const Pair& p = pairs_[i / 2];
    const auto& messages = i % 2 == 0 ? p.to_d : p.to_p;
    for (uint32_t m = 0; m < messages.size(); ++m) {
      const uint32_t index = i * kMessagesMax + m;
      if (m == 0 || (with_faults && config_.reorder)) {
        moves.push_back({Move::Kind::kDeliver, index});
      }
      if (with_faults && config_.faults.duplicates > 0) {
        moves.push_back({Move::Kind::kDuplicate, index});
      }
      if (with_faults && config_.faults.drops > 0) moves.push_back({Move::Kind::kDrop, index});
    }
  }
}

void World::handoff_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const {
  using Kind = Move::Kind;
  const Handoff& h = handoffs_[index];
  const Faults& faults = config_.faults;
  const auto offer = [&](bool possible, Kind kind) {
    if (possible) moves.push_back({kind, index});
  };
  const auto fault = [&](uint32_t left, bool possible, Kind kind) {
    offer(with_faults && left > 0 && possible, kind);
  };
  offer(!h.expected && !h.router_gone, Kind::kExpect);
  offer(!h.prepared && !h.router_gone, Kind::kPrepare);
  fault(faults.router_deaths, h.expected != h.prepared && !h.router_gone, Kind::kRouterDies);
  offer(h.prepared && !h.begun && !h.p_ended, Kind::kBegin);
  const bool has_room = num_free() >= h.num_blocks;
  offer(h.reserve_asked && has_room, Kind::kReserve);
  offer(h.reserve_asked && (!has_room || (with_faults && faults.refusals > 0)), Kind::kRefuse);
  offer(h.verify_asked, Kind::kVerify);
  fault(faults.corruptions, h.hold == Hold::kReserved && h.arrived_told, Kind::kCorrupt);
  const bool up = h.pair != 0 && pair(h.pair).p_up;
  const bool tells = h.writing && !h.completions_lost;
  const bool all_in = tells && !in_flight(h) && !reads_sources(h) && up;
  offer(all_in && !h.stopping && !h.arrived_told, Kind::kWritesArrived);
  // On a broken pair the operations come back with errors, whatever their bytes still do.
  offer((all_in || (tells && !up)) && h.stopping && !h.stopped_told, Kind::kWritesStopped);
  fault(faults.lost_completions, tells, Kind::kLoseCompletions);
  offer(h.activated && !h.d_ended, Kind::kFinish);
  const bool d_waits = h.expected && !h.d_ended;
  const bool p_waits = h.prepared && !h.p_ended;
  offer(d_waits && (h.router_gone || (with_faults && faults.ends > 0)), Kind::kEnd);
  offer(p_waits && (h.router_gone || (with_faults && faults.cancels > 0)), Kind::kCancel);
  if (with_faults && faults.strays > 0) stray_moves(index, moves);
  if (with_faults && faults.forgeries > 0 && h.pair != 0) forge_moves(index, moves);
}

void World::forge_moves(uint32_t index, std::vector<Move>& moves) const {
  const Handoff& h = handoffs_[index];
  for (uint32_t kind = 0; kind < kNumKinds; ++kind) {
    const bool to_d = is_to_d(forged_message({}, h.num_blocks, kind));
    if (!(to_d ? pair(h.pair).d_up : pair(h.pair).p_up)) continue;
    moves.push_back({Move::Kind::kForge, index * kNumKinds + kind});
  }
}

void World::stray_moves(uint32_t index, std::vector<Move>& moves) const {
  for (uint32_t i = 0; i < kNumStrays; ++i) {
    if (stray_pair(handoffs_[index], static_cast<Stray>(i)) == nullptr) continue;
    moves.push_back({Move::Kind::kStray, index * kNumStrays + i});
  }
}

const World::Pair* World::stray_pair(const Handoff& h, Stray stray) const {
  const bool of_pair = stray == Stray::kCommitOfPair || stray == Stray::kAbortedOfPair;
  for (const Pair& p : pairs_) {
    if (!(is_to_d(stray) ? p.d_up : p.p_up)) continue;
    if (of_pair ? p.id != h.pair : p.id == h.pair) return &p;
  }
  return nullptr;
}

void World::pair_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const {
  using Kind = Move::Kind;
  const Pair& p = pairs_[index];
  const auto offer = [&](bool possible, Kind kind) {
    if (possible) moves.push_back({kind, index});
  };
  const bool unprovoked = with_faults && config_.faults.breaks > 0;
  offer(p.d_up && (!p.p_up || unprovoked), Kind::kBreakD);
  offer(p.p_up && (!p.d_up || unprovoked), Kind::kBreakP);
  offer(!p.d_up && !p.d_closed, Kind::kCloseD);
  offer(!p.p_up && !p.p_closed, Kind::kCloseP);
  offer(p.d_closed && !p.d_proven && is_gone(p), Kind::kProcessGone);
}

void World::sender_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const {
  const Sender& sender = senders_[index];
  const auto offer = [&](bool possible, Move::Kind kind) {
    if (possible) moves.push_back({kind, index});
  };
  // The fronts make a new pair of the same two processes only once the old one is closed.
  offer(std::all_of(pairs_.begin(), pairs_.end(),
                    [&](const Pair& p) {
                      return p.sender != index || is_gone(p) || p.d_epoch != d_epoch_ ||
                             (p.d_closed && p.p_closed);
                    }),
        Move::Kind::kConnect);
  offer(!sender.loss_told || (with_faults && config_.faults.false_losses > 0),
        Move::Kind::kPeerLost);
  offer(with_faults && config_.faults.p_crashes > 0, Move::Kind::kCrashP);
  offer(with_faults && config_.faults.ticks > 0 && sender.table.next_tick() != UINT64_MAX,
        Move::Kind::kTickP);
}

}  // namespace crossdock::testing
