#include "world.h"

#include <algorithm>
#include <variant>

namespace crossdock::testing {
namespace {

PairKey world_key() {
  PairKey key{};
  key.fill(0x77);
  return key;
}

HandoffConfig make_table_config(const WorldConfig& config) {
  HandoffConfig table;
  table.verify = config.verify;
  table.open_wait_ticks = 10;
  table.quarantine_grace_ticks = 10;
  return table;
}

HandoffTable make_table(const HandoffConfig& table, const WorldConfig& config) {
  return HandoffTable(
      table,
      config.receiver_lifecycle != nullptr ? *config.receiver_lifecycle : receiver::lifecycle(),
      config.sender_lifecycle != nullptr ? *config.sender_lifecycle : sender::lifecycle());
}

Status cancelled() { return {StatusCode::kCancelled, "the caller went away"}; }

}  // namespace

World::World(const WorldConfig& config)
    : config_(config),
      table_config_(make_table_config(config)),
      d_(make_table(table_config_, config)),
      p_(make_table(table_config_, config)),
      memory_(config.num_blocks, -1),
      free_(config.num_blocks, true) {
  for (uint32_t i = 0; i < config.num_handoffs; ++i) {
    Handoff handoff;
    handoff.id = {0xABC, i};
    handoff.num_blocks = 2;
    handoff.num_matched = i % 3 == 1 ? 1 : 0;
    handoffs_.push_back(handoff);
  }
  connect();
}

// ---- making it happen ---------------------------------------------------------------------------

void World::apply(const Move& move) {
  using Kind = Move::Kind;
  const uint32_t i = move.index;
  switch (move.kind) {
    case Kind::kExpect:
    case Kind::kPrepare:
    case Kind::kBegin:
    case Kind::kReserve:
    case Kind::kRefuse:
    case Kind::kVerify:
    case Kind::kCorrupt:
    case Kind::kWritesArrived:
    case Kind::kWritesStopped:
    case Kind::kFinish:
    case Kind::kEnd:
    case Kind::kCancel: apply_to_handoff(move.kind, handoffs_[i]); break;
    case Kind::kDeliver:
    case Kind::kDuplicate:
    case Kind::kDrop: deliver(move); break;
    case Kind::kLand: land(i); break;
    case Kind::kWriteFails: {
      --config_.breaks;
      const Write write = writes_[i];
      tell_p(handoff_event::WritesFailed{handoffs_[write.handoff].id,
                                         Status(StatusCode::kUnavailable, "endpoint error")});
      break_p(*pair(write.pair));
      break;
    }
    case Kind::kBreakD:
      if (pairs_[i].p_up) --config_.breaks;
      break_d(pairs_[i]);
      break;
    case Kind::kBreakP:
      if (pairs_[i].d_up) --config_.breaks;
      break_p(pairs_[i]);
      break;
    case Kind::kCloseD: close_d(pairs_[i]); break;
    case Kind::kCloseP: close_p(pairs_[i]); break;
    case Kind::kProcessGone:
      pairs_[i].d_proven = true;
      tell_d(handoff_event::PairClosed{pairs_[i].id, true});
      break;
    case Kind::kConnect: connect(); break;
    case Kind::kCrash: crash(); break;
    case Kind::kPeerLost:
      if (p_loss_told_) --config_.false_losses;
      tell_d(handoff_event::PeerLost{p_loss_told_ ? p_epoch_ : p_epoch_ - 1});
      p_loss_told_ = true;
      break;
    case Kind::kTick:
      --config_.ticks;
      tell_d(handoff_event::Tick{}, d_.next_tick());
      break;
  }
}

void World::apply_to_handoff(Move::Kind kind, Handoff& h) {
  using Kind = Move::Kind;
  const uint32_t num_tokens = h.num_blocks * kBlockTokens;
  if (!h.expected && !h.prepared) {  // the router names P and its pair as it sees them now
    h.epoch = p_epoch_;
    h.pair = current_pair() != nullptr ? current_pair()->id : 0;
  }
  switch (kind) {
    case Kind::kExpect:
      h.expected = true;
      h.met = pair_up_at_d(h.pair);
      return tell_d(handoff_event::Expect{h.id, 1, h.epoch, num_tokens});
    case Kind::kPrepare:
      h.prepared = true;
      if (h.epoch != p_epoch_) {
        h.p_ended = true;  // its process is gone: the RPC fails
        return;
      }
      return tell_p(handoff_event::Prepare{h.id, 1, h.pair, num_tokens});
    case Kind::kBegin: h.begun = true; return tell_p(handoff_event::Begin{h.id});
    case Kind::kReserve: return reserve(h);
    case Kind::kRefuse:
      if (static_cast<uint32_t>(std::count(free_.begin(), free_.end(), true)) >= h.num_blocks) {
        --config_.refusals;
      }
      h.reserve_asked = false;
      return tell_d(
          handoff_event::Reserved{h.id, Status(StatusCode::kResourceExhausted, "no room"), 0, {}});
    case Kind::kVerify:
      h.verify_asked = false;
      return tell_d(handoff_event::Verified{h.id, intact(h)});
    case Kind::kCorrupt:
      --config_.corruptions;
      memory_[h.blocks.back()] = -1;
      return;
    case Kind::kWritesArrived: {
      h.arrived_told = true;
      handoff_event::WritesArrived arrived{h.id, {ChoiceState{1, 2, 3}}, {}};
      arrived.checksum.fill(1);
      return tell_p(arrived);
    }
    case Kind::kWritesStopped:
      h.stopped_told = true;
      return tell_p(handoff_event::WritesStopped{h.id});
    case Kind::kFinish:
    case Kind::kEnd:
      if (kind == Kind::kEnd) --config_.ends;
      h.d_ended = true;
      if (h.activated) free_blocks(h);
      return tell_d(handoff_event::End{h.id, kind == Kind::kFinish ? Status() : cancelled()});
    default: --config_.cancels; return tell_p(handoff_event::Cancel{h.id, cancelled()});
  }
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

void World::deliver(Move move) {
  auto& messages = queue(move.index / kMessagesMax);
  const auto it = messages.begin() + move.index % kMessagesMax;
  const HandoffMessage message = *it;
  const PairId id = pairs_[move.index / kMessagesMax / 2].id;
  if (move.kind == Move::Kind::kDuplicate) {
    --config_.duplicates;
    messages.push_back(message);
    return;
  }
  messages.erase(it);
  if (move.kind == Move::Kind::kDrop) {
    --config_.drops;
    messages_lost_ = true;
    return;
  }
  const handoff_event::Arrived arrived{id, message};
  move.index / kMessagesMax % 2 == 0 ? tell_d(arrived) : tell_p(arrived);
}

void World::land(uint32_t index) {
  const Write write = writes_[index];
  writes_.erase(writes_.begin() + index);
  const Handoff& h = handoffs_[write.handoff];
  const bool holds = std::find(h.blocks.begin(), h.blocks.end(), write.block) != h.blocks.end();
  if (!holds || free_[write.block] || h.hold == Hold::kNothing || h.hold == Hold::kActive) {
    violate("a write landed in a block that is no longer its handoff's");
  }
  memory_[write.block] = static_cast<int>(write.handoff);
}

void World::connect() {
  Pair pair;
  pair.id = static_cast<PairId>(pairs_.size()) + 1;
  pair.epoch = p_epoch_;
  pairs_.push_back(pair);
  const uint64_t incarnation = 100 + pair.id;
  tell_d(handoff_event::PairUp{pair.id, p_epoch_, incarnation, world_key()});
  tell_p(handoff_event::PairUp{pair.id, 0xD, incarnation, world_key()});
}

void World::break_d(Pair& pair) {
  if (!pair.d_up) return;
  pair.d_up = false;
  tell_d(handoff_event::PairBroken{pair.id});
}

void World::break_p(Pair& pair) {
  if (!pair.p_up) return;
  pair.p_up = false;
  tell_p(handoff_event::PairBroken{pair.id});
}

void World::close_d(Pair& pair) {
  pair.d_closed = true;
  // Over tcp nothing gets through a closed endpoint. Over shared memory only the end of the copying
  // process (or its own close, which the fronts wait for before they make a new pair) is an end.
  pair.d_proven = config_.transport == WorldTransport::kTcp || pair.epoch != p_epoch_;
  if (config_.transport == WorldTransport::kTcp) drop_writes(pair.id);
  tell_d(handoff_event::PairClosed{pair.id, pair.d_proven});
}

void World::close_p(Pair& pair) {
  pair.p_closed = true;
  if (config_.transport == WorldTransport::kShm) drop_writes(pair.id);
  for (Write& write : writes_) {
    if (write.pair == pair.id) write.reads_source = false;
  }
  tell_p(handoff_event::PairClosed{pair.id, false});
}

void World::crash() {
  --config_.crashes;
  p_ = make_table(table_config_, config_);
  for (Pair& pair : pairs_) {
    if (pair.epoch != p_epoch_) continue;
    pair.p_up = false;
    pair.p_closed = true;
    pair.to_p.clear();
    if (config_.transport == WorldTransport::kShm) drop_writes(pair.id);
  }
  for (Write& write : writes_) write.reads_source = false;
  for (Handoff& h : handoffs_) {
    if (h.epoch == p_epoch_ && h.prepared) h.p_ended = true;
    if (h.epoch == p_epoch_) h.writing = false;
  }
  ++p_epoch_;
  p_loss_told_ = false;
}

void World::drop_writes(PairId pair) {
  std::erase_if(writes_, [&](const Write& write) { return write.pair == pair; });
}

// ---- what the tables ask for --------------------------------------------------------------------

void World::tell_d(const HandoffEvent& event, uint64_t tick) {
  std::vector<HandoffAction> actions;
  d_.on(event, tick, actions);
  for (const HandoffAction& action : actions) act_d(action);
}

void World::tell_p(const HandoffEvent& event) {
  std::vector<HandoffAction> actions;
  p_.on(event, 0, actions);
  for (const HandoffAction& action : actions) act_p(action);
}

void World::act_d(const HandoffAction& any) {
  using namespace handoff_action;
  if (const auto* send = std::get_if<Send>(&any)) {
    Pair* to = pair(send->pair);
    if (to == nullptr || !to->d_up) return violate("D spoke on a pair that is not up");
    if (to->epoch == p_epoch_) to->to_p.push_back(send->message);
  } else if (const auto* reserve = std::get_if<Reserve>(&any)) {
    handoff(reserve->id).reserve_asked = true;
  } else if (const auto* verify = std::get_if<Verify>(&any)) {
    handoff(verify->id).verify_asked = true;
  } else if (const auto* committed = std::get_if<Activate>(&any)) {
    activate(handoff(committed->id));
  } else if (const auto* quarantine = std::get_if<Quarantine>(&any)) {
    Handoff& h = handoff(quarantine->id);
    if (h.hold != Hold::kReserved) violate("a quarantine of nothing");
    h.hold = Hold::kQuarantined;
  } else if (const auto* over = std::get_if<EndQuarantine>(&any)) {
    if (handoff(over->id).hold != Hold::kQuarantined) violate("the end of no quarantine");
    free_blocks(handoff(over->id));
  } else if (const auto* drop = std::get_if<DropReservation>(&any)) {
    if (handoff(drop->id).hold != Hold::kReserved) violate("a drop of no reservation");
    free_blocks(handoff(drop->id));
  } else if (const auto* lost = std::get_if<Lost>(&any)) {
    Handoff& h = handoff(lost->id);
    if (h.d_ended) violate("D ended a handoff twice");
    if (lost->reason.ok()) violate("lost without a reason");
    h.d_ended = true;
  } else if (const auto* broken = std::get_if<BreakPair>(&any)) {
    break_d(*pair(broken->pair));
  } else {
    violate("D was asked for what only P can do");
  }
}

void World::act_p(const HandoffAction& any) {
  using namespace handoff_action;
  if (const auto* send = std::get_if<Send>(&any)) {
    Pair* to = pair(send->pair);
    if (to == nullptr || !to->p_up) return violate("P spoke on a pair that is not up");
    to->to_d.push_back(send->message);
  } else if (const auto* start = std::get_if<StartWrites>(&any)) {
    start_writes(handoff(start->id), *start);
  } else if (const auto* stop = std::get_if<StopWrites>(&any)) {
    handoff(stop->id).stopping = true;
  } else if (const auto* finished = std::get_if<Finished>(&any)) {
    Handoff& h = handoff(finished->id);
    if (h.p_ended) violate("P ended a handoff twice");
    if (in_flight(h, true)) violate("P freed sources that an operation still reads");
    if (finished->status.ok() && !h.activated) violate("P told of a commit that D never saw");
    h.p_ended = true;
    h.p_ok = finished->status.ok();
    h.writing = false;
  } else if (const auto* broken = std::get_if<BreakPair>(&any)) {
    break_p(*pair(broken->pair));
  } else {
    violate("P was asked for what only D can do");
  }
}

void World::start_writes(Handoff& h, const handoff_action::StartWrites& action) {
  if (h.writing) violate("writes were started twice");
  h.writing = true;
  // Over tcp, puts to an endpoint that D has closed vanish, and may well be reported as done.
  if (config_.transport == WorldTransport::kTcp && pair(h.pair)->d_closed) return;
  for (size_t i = action.num_matched_blocks; i < action.blocks.size(); ++i) {
    writes_.push_back({static_cast<uint32_t>(h.id.low), action.blocks[i], h.pair, true});
  }
}

void World::activate(Handoff& h) {
  if (h.activated) violate("a handoff was activated twice");
  if (h.d_ended) violate("a handoff was activated after its end");
  if (h.hold != Hold::kReserved) violate("a handoff was activated without its blocks");
  if (in_flight(h, false)) violate("a commit was seen before a write of it had landed");
  if (!intact(h)) violate("a commit was seen before every byte it covers");
  h.activated = true;
  h.hold = Hold::kActive;
}

void World::free_blocks(Handoff& h) {
  if (in_flight(h, false)) violate("blocks were freed that a write may still land in");
  if (h.verify_asked) violate("blocks were freed while they were being verified");
  for (const BlockId b : h.blocks) free_[b] = true;
  h.hold = Hold::kNothing;
}

// ---- the end ------------------------------------------------------------------------------------

// Applies whatever is under way until nothing is.
void World::settle() {
  for (int step = 0; step < 20'000; ++step) {
    const auto next = moves(false);
    if (next.empty() || !violation_.empty()) return;
    apply(next.front());
  }
  violate("the world does not come to rest");
}

// What the router does: when P's RPC fails, it ends D's stream. Where D expected the handoff while
// the pair was up, it has learned of it by then, from P or from the end of the pair.
void World::end_orphans() {
  for (Handoff& h : handoffs_) {
    if (!h.expected || h.d_ended || !h.p_ended || h.p_ok) continue;
    if (!messages_lost_ && h.met) violate("D never heard that P gave the handoff up");
    end(h);
  }
}

void World::drain() {
  settle();
  end_orphans();
  settle();
  if (d_.num_quarantined() > 0 && !messages_lost_) {
    violate("a quarantine waits for its grace although no message was lost");
  }
  pass_time();
  for (Handoff& h : handoffs_) {  // what the callers' deadlines do
    const bool d_hangs = h.expected && !h.d_ended;
    const bool p_hangs = h.prepared && !h.p_ended;
    if ((d_hangs || p_hangs) && !messages_lost_) {
      violate("a handoff hangs until its deadline although no message was lost");
    }
    if (d_hangs) end(h);
    if (p_hangs) cancel(h);
  }
  settle();
  pass_time();
  check_end();
}

void World::pass_time() {
  for (int i = 0; i < 100 && violation_.empty() && d_.next_tick() != UINT64_MAX; ++i) {
    tell_d(handoff_event::Tick{}, d_.next_tick());
    settle();
    end_orphans();
    settle();
  }
}

void World::end(Handoff& h) {
  ++config_.ends;
  apply_to_handoff(Move::Kind::kEnd, h);
}

void World::cancel(Handoff& h) {
  ++config_.cancels;
  apply_to_handoff(Move::Kind::kCancel, h);
}

void World::check_end() {
  if (d_.num_live() != 0) violate("D keeps a handoff for ever:\n" + d_.describe());
  if (p_.num_live() != 0) violate("P keeps a handoff for ever:\n" + p_.describe());
  if (d_.num_quarantined() != 0) violate("a quarantine never ends");
  if (std::count(free_.begin(), free_.end(), false) != 0) violate("blocks of D are lost");
  for (const Handoff& h : handoffs_) {
    if (h.expected && !h.d_ended) violate("a handoff never ended at D");
    if (h.prepared && !h.p_ended) violate("a handoff never ended at P");
  }
}

uint32_t World::num_committed() const {
  return static_cast<uint32_t>(std::count_if(handoffs_.begin(), handoffs_.end(),
                                             [](const Handoff& h) { return h.activated; }));
}

// ---- small questions ----------------------------------------------------------------------------

World::Pair* World::pair(PairId id) {
  for (Pair& pair : pairs_) {
    if (pair.id == id) return &pair;
  }
  return nullptr;
}

const World::Pair* World::current_pair() const {
  for (const Pair& pair : pairs_) {
    if (pair.epoch == p_epoch_ && pair.d_up && pair.p_up) return &pair;
  }
  return nullptr;
}

std::vector<HandoffMessage>& World::queue(uint32_t index) {
  return index % 2 == 0 ? pairs_[index / 2].to_d : pairs_[index / 2].to_p;
}

bool World::in_flight(const Handoff& h, bool reading_only) const {
  return std::any_of(writes_.begin(), writes_.end(), [&](const Write& write) {
    return write.handoff == h.id.low && (write.reads_source || !reading_only);
  });
}

bool World::intact(const Handoff& h) const {
  return std::all_of(h.blocks.begin(), h.blocks.end(),
                     [&](BlockId b) { return memory_[b] == static_cast<int>(h.id.low); });
}

bool World::pair_up_at_d(PairId id) const {
  return std::any_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.id == id && pair.d_up; });
}

bool World::pair_up_at_p(PairId id) const {
  return std::any_of(pairs_.begin(), pairs_.end(),
                     [&](const Pair& pair) { return pair.id == id && pair.p_up; });
}

void World::violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

std::string World::fingerprint() const {
  std::string text = d_.describe() + p_.describe();
  const auto add = [&](uint64_t value) { text += std::to_string(value) + ","; };
  for (const uint32_t budget :
       {config_.duplicates, config_.drops, config_.breaks, config_.crashes, config_.cancels,
        config_.ends, config_.refusals, config_.false_losses, config_.corruptions, config_.ticks}) {
    add(budget);
  }
  add(p_epoch_ * 4 + p_loss_told_ * 2 + messages_lost_);
  for (const Handoff& h : handoffs_) {
    uint64_t flags = 0;
    for (const bool flag :
         {h.expected, h.met, h.prepared, h.begun, h.d_ended, h.p_ended, h.p_ok, h.reserve_asked,
          h.verify_asked, h.writing, h.stopping, h.arrived_told, h.stopped_told, h.activated}) {
      flags = flags * 2 + flag;
    }
    add(flags);
    add(static_cast<uint64_t>(h.hold));
    add(h.epoch);
    add(h.pair);
  }
  for (const Pair& pair : pairs_) {
    uint64_t flags = 0;
    for (const bool f : {pair.d_up, pair.d_closed, pair.d_proven, pair.p_up, pair.p_closed}) {
      flags = flags * 2 + f;
    }
    add(flags);
    for (const auto* messages : {&pair.to_d, &pair.to_p}) {
      text += "|";
      for (const HandoffMessage& message : *messages) {
        add(message.index());
        add(key_of(message).id.low);
      }
    }
  }
  for (const Write& write : writes_) add(write.block * 8 + write.handoff * 2 + write.reads_source);
  text += "|";
  for (const int content : memory_) text += std::to_string(content) + ",";
  return text;
}

}  // namespace crossdock::testing
