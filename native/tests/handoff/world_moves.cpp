// What may happen next in the world.
#include <algorithm>

#include "world.h"

namespace crossdock::testing {

std::vector<Move> World::moves(bool with_faults) const {
  std::vector<Move> moves;
  message_moves(with_faults, moves);
  for (uint32_t i = 0; i < writes_.size(); ++i) {
    moves.push_back({Move::Kind::kLand, i});
    if (with_faults && config_.breaks > 0 && pair_up_at_p(writes_[i].pair)) {
      moves.push_back({Move::Kind::kWriteFails, i});
    }
  }
  for (uint32_t i = 0; i < handoffs_.size(); ++i) handoff_moves(i, with_faults, moves);
  for (uint32_t i = 0; i < pairs_.size(); ++i) pair_moves(i, with_faults, moves);
  const bool all_closed = std::all_of(pairs_.begin(), pairs_.end(), [&](const Pair& pair) {
    return pair.epoch != p_epoch_ || (pair.d_closed && pair.p_closed);
  });
  if (all_closed) moves.push_back({Move::Kind::kConnect, 0});
  if (!p_loss_told_ || (with_faults && config_.false_losses > 0)) {
    moves.push_back({Move::Kind::kPeerLost, 0});
  }
  if (with_faults && config_.crashes > 0) moves.push_back({Move::Kind::kCrash, 0});
  if (with_faults && config_.ticks > 0 && d_.next_tick() != UINT64_MAX) {
    moves.push_back({Move::Kind::kTick, 0});
  }
  return moves;
}

void World::message_moves(bool with_faults, std::vector<Move>& moves) const {
  for (uint32_t i = 0; i < 2 * pairs_.size(); ++i) {
    const Pair& pair = pairs_[i / 2];
    const auto& messages = i % 2 == 0 ? pair.to_d : pair.to_p;
    for (uint32_t m = 0; m < messages.size(); ++m) {
      const uint32_t index = i * kMessagesMax + m;
      if (m == 0 || (with_faults && config_.reorder)) {
        moves.push_back({Move::Kind::kDeliver, index});
      }
      if (with_faults && config_.duplicates > 0) moves.push_back({Move::Kind::kDuplicate, index});
      if (with_faults && config_.drops > 0) moves.push_back({Move::Kind::kDrop, index});
    }
  }
}

void World::handoff_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const {
  using Kind = Move::Kind;
  const Handoff& h = handoffs_[index];
  const auto offer = [&](bool possible, Kind kind) {
    if (possible) moves.push_back({kind, index});
  };
  const auto num_free = static_cast<uint32_t>(std::count(free_.begin(), free_.end(), true));
  offer(!h.expected, Kind::kExpect);
  offer(!h.prepared, Kind::kPrepare);
  offer(h.prepared && !h.begun && !h.p_ended, Kind::kBegin);
  offer(h.reserve_asked && num_free >= h.num_blocks, Kind::kReserve);
  offer(h.reserve_asked && (num_free < h.num_blocks || (with_faults && config_.refusals > 0)),
        Kind::kRefuse);
  offer(h.verify_asked, Kind::kVerify);
  offer(h.verify_asked && with_faults && config_.corruptions > 0, Kind::kCorrupt);
  const bool all_in = h.writing && !in_flight(h, false) && pair_up_at_p(h.pair);
  offer(all_in && !h.stopping && !h.arrived_told, Kind::kWritesArrived);
  // On a broken pair the operations come back with errors, whatever their bytes still do.
  const bool failed = h.writing && !pair_up_at_p(h.pair);
  offer((all_in || failed) && h.stopping && !h.stopped_told, Kind::kWritesStopped);
  offer(h.activated && !h.d_ended, Kind::kFinish);
  offer(h.expected && !h.d_ended && with_faults && config_.ends > 0, Kind::kEnd);
  offer(h.prepared && !h.p_ended && with_faults && config_.cancels > 0, Kind::kCancel);
}

void World::pair_moves(uint32_t index, bool with_faults, std::vector<Move>& moves) const {
  using Kind = Move::Kind;
  const Pair& pair = pairs_[index];
  const auto offer = [&](bool possible, Kind kind) {
    if (possible) moves.push_back({kind, index});
  };
  const bool unprovoked = with_faults && config_.breaks > 0;
  offer(pair.d_up && (!pair.p_up || unprovoked), Kind::kBreakD);
  offer(pair.p_up && (!pair.d_up || unprovoked), Kind::kBreakP);
  offer(!pair.d_up && !pair.d_closed, Kind::kCloseD);
  offer(!pair.p_up && !pair.p_closed, Kind::kCloseP);
  offer(pair.d_closed && !pair.d_proven && pair.epoch != p_epoch_, Kind::kProcessGone);
}

}  // namespace crossdock::testing
