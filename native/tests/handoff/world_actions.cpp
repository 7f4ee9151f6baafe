// What the tables of the world are told, and what becomes of what they ask for.
#include <algorithm>

#include "world.h"
#include "world_messages.h"

namespace crossdock::testing {

HandoffTable World::make_table() const {
  return HandoffTable(
      config_.table,
      config_.receiver_lifecycle != nullptr ? *config_.receiver_lifecycle : receiver::lifecycle(),
      config_.sender_lifecycle != nullptr ? *config_.sender_lifecycle : sender::lifecycle());
}

// Rewrites the fields that the tables are to be blind to as those that they expect.
void World::blindfold(HandoffEvent& event, bool at_d) const {
  const Blindness& blind = config_.blind;
  if (auto* up = std::get_if<handoff_event::PairUp>(&event)) {
    if (blind.epoch) up->peer_epoch = 1;
    if (blind.incarnation) up->incarnation = 1;
  } else if (auto* expect = std::get_if<handoff_event::Expect>(&event)) {
    if (blind.epoch) expect->peer_epoch = 1;
  } else if (auto* lost = std::get_if<handoff_event::PeerLost>(&event)) {
    if (blind.epoch) lost->peer_epoch = 1;
  }
  auto* arrived = std::get_if<handoff_event::Arrived>(&event);
  if (arrived == nullptr) return;
  HandoffKey& key = std::visit([](auto& m) -> HandoffKey& { return m.key; }, arrived->message);
  const PairId own = handoffs_[key.id.low].pair;
  const bool own_is_up = own != 0 && (at_d ? pair(own).d_up : pair(own).p_up);
  if (blind.pair && own_is_up && key.incarnation == incarnation_of(arrived->pair)) {
    arrived->pair = own;
    key.incarnation = incarnation_of(own);
  }
  if (blind.incarnation) key.incarnation = 1;
  if (blind.attempt) key.attempt = 1;
}

// By the seal and the parser of the product.
void World::arrive(Pair& on, bool to_d, const HandoffMessage& message, bool forged) {
  const PairKey key = key_of_pair(on.id);
  PairKey used = key;
  const bool blind = (config_.blind.seals_of >> message.index() & 1) != 0;
  if ((forged && !blind) || config_.keys_differ) used[0] ^= 1;
  const uint64_t sender_epoch = to_d ? on.p_epoch : on.d_epoch;
  HandoffEvent event = receive(on.id, seal(encode(message), used, sender_epoch), key, sender_epoch);
  bool& heard = to_d ? on.d_heard : on.p_heard;
  if (!std::holds_alternative<handoff_event::Forged>(event)) {
    heard = true;
  } else {
    if (!heard) forged_first_ = true;
    if (config_.on_forgery == OnForgery::kNeverBreak) return;
    if (config_.on_forgery == OnForgery::kAlwaysBreak) {
      return to_d ? break_d(on) : break_p(on);
    }
  }
  to_d ? tell_d(std::move(event)) : tell_p(on.sender, std::move(event));
}

void World::tell_d(HandoffEvent event, uint64_t tick) {
  blindfold(event, true);
  std::vector<HandoffAction> actions;
  d_.on(event, tick, actions);
  for (const HandoffAction& action : actions) act_d(action);
}

void World::tell_p(uint32_t sender, HandoffEvent event, uint64_t tick) {
  blindfold(event, false);
  std::vector<HandoffAction> actions;
  senders_[sender].table.on(event, tick, actions);
  for (const HandoffAction& action : actions) act_p(sender, action);
}

void World::act_d(const HandoffAction& any) {
  using namespace handoff_action;
  if (const auto* send = std::get_if<Send>(&any)) {
    Pair& to = pair(send->pair);
    if (!to.d_up) return violate(Invariant::kContract, "D spoke on a pair that is not up");
    if (!is_gone(to)) to.to_p.push_back(send->message);
  } else if (const auto* reserve = std::get_if<Reserve>(&any)) {
    handoff(reserve->id).reserve_asked = true;
  } else if (const auto* verify = std::get_if<Verify>(&any)) {
    handoff(verify->id).verify_asked = true;
  } else if (const auto* committed = std::get_if<Activate>(&any)) {
    activate(handoff(committed->id), committed->commit);
  } else if (const auto* quarantine = std::get_if<Quarantine>(&any)) {
    Handoff& h = handoff(quarantine->id);
    if (h.hold != Hold::kReserved) violate(Invariant::kConserved, "a quarantine of nothing");
    h.hold = Hold::kQuarantined;
  } else if (const auto* over = std::get_if<EndQuarantine>(&any)) {
    Handoff& h = handoff(over->id);
    if (h.hold != Hold::kQuarantined) violate(Invariant::kConserved, "the end of no quarantine");
    free_blocks(h);
  } else if (const auto* drop = std::get_if<DropReservation>(&any)) {
    Handoff& h = handoff(drop->id);
    if (h.hold != Hold::kReserved) violate(Invariant::kConserved, "a drop of no reservation");
    free_blocks(h);
  } else if (const auto* lost = std::get_if<Lost>(&any)) {
    Handoff& h = handoff(lost->id);
    if (h.d_ended) violate(Invariant::kEndsOnce, "D ended a handoff twice");
    if (lost->reason.ok()) violate(Invariant::kContract, "lost without a reason");
    h.d_ended = true;
  } else if (const auto* broken = std::get_if<BreakPair>(&any)) {
    break_d(pair(broken->pair));
  } else {
    violate(Invariant::kContract, "D was asked for what only P can do");
  }
}

void World::act_p(uint32_t sender, const HandoffAction& any) {
  using namespace handoff_action;
  if (const auto* send = std::get_if<Send>(&any)) {
    Pair& to = pair(send->pair);
    if (!to.p_up || to.sender != sender) {
      return violate(Invariant::kContract, "P spoke on a pair that is not up");
    }
    if (to.d_epoch == d_epoch_) to.to_d.push_back(send->message);
  } else if (const auto* start = std::get_if<StartWrites>(&any)) {
    start_writes(handoff(start->id), *start);
  } else if (const auto* stop = std::get_if<StopWrites>(&any)) {
    handoff(stop->id).stopping = true;
  } else if (const auto* finished = std::get_if<Finished>(&any)) {
    finish_at_p(*finished);
  } else if (const auto* broken = std::get_if<BreakPair>(&any)) {
    break_p(pair(broken->pair));
  } else {
    violate(Invariant::kContract, "P was asked for what only D can do");
  }
}

void World::start_writes(Handoff& h, const handoff_action::StartWrites& action) {
  if (h.writing) violate(Invariant::kContract, "writes were started twice");
  h.writing = true;
  const Pair& to = pair(h.pair);
  // Puts to an endpoint that D has closed, or whose D is dead, vanish, and may well be reported as
  // done.
  const bool dead = to.d_epoch != d_epoch_;
  if (dead || (config_.transport == WorldTransport::kTcp && to.d_closed)) return;
  for (size_t i = action.num_matched_blocks; i < action.blocks.size(); ++i) {
    writes_.push_back({static_cast<uint32_t>(h.id.low), action.blocks[i], h.pair});
  }
}

void World::finish_at_p(const handoff_action::Finished& action) {
  Handoff& h = handoff(action.id);
  if (h.p_ended) violate(Invariant::kEndsOnce, "P ended a handoff twice");
  if (reads_sources(h)) {
    violate(Invariant::kNoReuse, "P freed sources that an operation still reads");
  }
  if (action.status.ok() && !h.activated) {
    violate(Invariant::kCommitCovers, "P told of a commit that D never saw");
  }
  h.p_ended = true;
  h.p_ok = action.status.ok();
  h.writing = false;
}

void World::activate(Handoff& h, const Commit& commit) {
  if (h.activated) violate(Invariant::kEndsOnce, "a handoff was activated twice");
  if (h.d_ended) violate(Invariant::kEndsOnce, "a handoff was activated after its end");
  if (h.hold != Hold::kReserved) {
    violate(Invariant::kConserved, "a handoff was activated without its blocks");
  }
  if (in_flight(h)) {
    violate(Invariant::kCommitCovers, "a commit was seen before a write of it had landed");
  }
  if (!intact(h)) {
    violate(Invariant::kCommitCovers, "a commit was seen before every byte it covers");
  }
  const auto token = commit.choices.empty() ? 0 : commit.choices.front().first_token;
  if (token != true_choice(h.id).first_token) {
    violate(Invariant::kTokensEqual, "D decodes from a token that the prompt does not lead to");
  }
  h.activated = true;
  h.hold = Hold::kActive;
}

void World::free_blocks(Handoff& h) {
  if (in_flight(h)) {
    violate(Invariant::kNoReuse, "blocks were freed that a write may still land in");
  }
  if (h.verify_asked) {
    violate(Invariant::kNoReuse, "blocks were freed while they were being verified");
  }
  for (const BlockId b : h.blocks) free_[b] = true;
  h.blocks.clear();
  h.hold = Hold::kNothing;
}

void World::break_d(Pair& p) {
  if (!p.d_up) return;
  p.d_up = false;
  tell_d(handoff_event::PairBroken{p.id});
}

void World::break_p(Pair& p) {
  if (!p.p_up) return;
  p.p_up = false;
  tell_p(p.sender, handoff_event::PairBroken{p.id});
}

}  // namespace crossdock::testing
