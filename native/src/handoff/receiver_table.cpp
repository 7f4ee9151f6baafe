#include "receiver_table.h"

#include <algorithm>
#include <cassert>

namespace crossdock {
namespace {

bool is_live(receiver::State state) {
  return state != receiver::State::kAbsent && state != receiver::State::kEnded &&
         state != receiver::State::kFreed;
}

bool is_quarantined(receiver::State state) {
  return state == receiver::State::kQuarantined || state == receiver::State::kVerifyRevoked;
}

bool is_zero(const std::array<uint8_t, 16>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

}  // namespace

ReceiverTable::ReceiverTable(const HandoffConfig& config, const receiver::Lifecycle& lifecycle)
    : config_(config),
      lifecycle_(&lifecycle),
      ended_(config.tombstones_max),
      strangers_(config.tombstones_max) {}

// ---- events to inputs ---------------------------------------------------------------------------

void ReceiverTable::on(const handoff_event::Expect& event, bool epoch_lost, Exchange& x) {
  Input input = epoch_lost ? Input::kExpectLost : Input::kExpect;
  const auto it = live_.find(event.id);
  if (!epoch_lost && it != live_.end() && it->second.state == State::kPending) {
    const Record& pending = it->second;
    if (pending.key.attempt != event.attempt || pending.peer_epoch != event.peer_epoch) {
      input = Input::kExpectOther;
    } else if (pending.num_prompt_tokens != event.num_prompt_tokens) {
      input = Input::kExpectMisfit;
    }
  }
  Cause cause;
  cause.expect = &event;
  apply(event.id, input, cause, x);
}

void ReceiverTable::on(const handoff_event::Reserved& event, Exchange& x) {
  Cause cause;
  cause.reserved = &event;
  cause.reason = event.status;
  apply(event.id, event.status.ok() ? Input::kReserved : Input::kReserveFailed, cause, x);
}

void ReceiverTable::on(const handoff_event::Verified& event, Exchange& x) {
  apply(event.id, event.ok ? Input::kVerified : Input::kVerifyFailed, Cause{}, x);
}

void ReceiverTable::on(const handoff_event::End& event, Exchange& x) {
  Cause cause;
  cause.reason = event.reason;
  apply(event.id, Input::kEnd, cause, x);
}

void ReceiverTable::on_message(PairId pair, const Open& open, Exchange& x) {
  if (const HandoffCounter counter = refusal(open.key, pair, x)) {
    ++(x.counters.*counter);
    x.send(pair, Refuse{open.key, StatusCode::kFailedPrecondition});
    return;
  }
  Cause cause;
  cause.pair = pair;
  cause.key = &open.key;
  cause.open = &open;
  apply(open.key.id, input_of(open, pair, x), cause, x);
}

void ReceiverTable::on_message(PairId pair, const Commit& commit, Exchange& x) {
  if (const HandoffCounter counter = refusal(commit.key, pair, x)) {
    ++(x.counters.*counter);
    x.send(pair, Nack{commit.key, StatusCode::kFailedPrecondition});
    return;
  }
  Cause cause;
  cause.pair = pair;
  cause.key = &commit.key;
  cause.commit = &commit;
  apply(commit.key.id, input_of(commit), cause, x);
}

void ReceiverTable::on_message(PairId pair, const Aborted& aborted, Exchange& x) {
  if (const HandoffCounter counter = refusal(aborted.key, pair, x)) {
    ++(x.counters.*counter);
    return;
  }
  Cause cause;
  cause.pair = pair;
  cause.key = &aborted.key;
  apply(aborted.key.id, Input::kAborted, cause, x);
}

HandoffCounter ReceiverTable::refusal(const HandoffKey& key, PairId pair, const Exchange& x) const {
  const auto it = live_.find(key.id);
  if (it != live_.end()) {
    const Record& record = it->second;
    if (record.has_pair && record.pair != pair) return &HandoffCounters::refused_incarnation;
    if (record.key.attempt != key.attempt) return &HandoffCounters::refused_attempt;
    if (record.expected && record.peer_epoch != x.pairs.find(pair)->peer_epoch) {
      return &HandoffCounters::refused_epoch;
    }
  } else if (const auto* tombstone = find_tombstone(key.id)) {
    if (tombstone->has_pair && tombstone->pair != pair) {
      return &HandoffCounters::refused_incarnation;
    }
    if (tombstone->attempt != key.attempt) return &HandoffCounters::refused_attempt;
  }
  return nullptr;
}

receiver::Input ReceiverTable::input_of(const Open& open, PairId pair, const Exchange& x) const {
  const auto it = live_.find(open.key.id);
  if (it != live_.end() && it->second.num_prompt_tokens != open.num_prompt_tokens) {
    return Input::kOpenMisfit;
  }
  return x.pairs.find(pair)->num_pending >= config_.pending_opens_max ? Input::kOpenOverLimit
                                                                      : Input::kOpen;
}

receiver::Input ReceiverTable::input_of(const Commit& commit) const {
  const auto it = live_.find(commit.key.id);
  if (it == live_.end() || it->second.state != State::kGranted) return Input::kCommit;
  const Record& record = it->second;
  const bool fits = commit.num_blocks == record.blocks.size() &&
                    commit.choices.size() == record.num_choices &&
                    !(config_.verify && is_zero(commit.checksum));
  if (!fits) return Input::kCommitMisfit;
  return config_.verify ? Input::kCommitToVerify : Input::kCommit;
}

template <typename Predicate>
std::vector<HandoffId> ReceiverTable::select(Predicate predicate) const {
  std::vector<std::pair<uint64_t, HandoffId>> found;
  for (const auto& [id, record] : live_) {
    if (predicate(record)) found.emplace_back(record.arrival, id);
  }
  std::sort(found.begin(), found.end());
  std::vector<HandoffId> ids;
  for (const auto& entry : found) ids.push_back(entry.second);
  return ids;
}

void ReceiverTable::pair_broken(PairId pair, uint64_t peer_epoch, Exchange& x) {
  const auto concerned = select([&](const Record& record) {
    return record.has_pair ? record.pair == pair : record.peer_epoch == peer_epoch;
  });
  for (const HandoffId& id : concerned) {
    apply(id, Input::kPairBroken, Cause{}, x);
    // Only the end of the pair can end its quarantines now, and that is under way.
    const auto it = live_.find(id);
    if (it != live_.end()) deadlines_.arm(id, it->second.deadline, kNoDeadline);
  }
}

void ReceiverTable::writes_proven(PairId pair, Exchange& x) {
  const auto concerned =
      select([&](const Record& record) { return record.has_pair && record.pair == pair; });
  for (const HandoffId& id : concerned) apply(id, Input::kWritesProven, Cause{}, x);
}

void ReceiverTable::peer_lost(uint64_t peer_epoch, Exchange& x) {
  const auto concerned =
      select([&](const Record& record) { return record.peer_epoch == peer_epoch; });
  for (const HandoffId& id : concerned) apply(id, Input::kPeerLost, Cause{}, x);
}

void ReceiverTable::expire(Exchange& x) {
  while (const auto id = deadlines_.due(x.tick)) {
    deadlines_.arm(*id, live_.at(*id).deadline, kNoDeadline);
    apply(*id, Input::kExpired, Cause{}, x);
  }
}

// ---- transitions --------------------------------------------------------------------------------

void ReceiverTable::apply(const HandoffId& id, Input input, const Cause& cause, Exchange& x) {
  Record record;
  const auto it = live_.find(id);
  if (it != live_.end()) {
    record = std::move(it->second);
  } else {
    record.state = state(id);
    record.key.id = id;
  }
  const receiver::Lifecycle::Transition& transition = lifecycle_->at(record.state, input);
  if (transition.counter != nullptr) ++(x.counters.*transition.counter);

  // A message is answered on its own pair with its own key, an event with those of the open.
  const Reply reply =
      cause.key != nullptr ? Reply{cause.pair, *cause.key} : Reply{record.pair, record.key};
  if (is_live(record.state) || record.state == State::kAbsent) absorb(record, cause, x);
  Status reason = cause.reason;
  if (reason.ok()) reason = Status(transition.code, transition.why);
  for (size_t i = 0; i < transition.num_steps; ++i) {
    run(transition.steps[i], record, reason, reply, x);
  }
  move(id, std::move(record), transition.next, x);
}

// Takes what the input brings into the record, in the states that still lack it.
void ReceiverTable::absorb(Record& record, const Cause& cause, Exchange& x) {
  const bool unexpected = record.state == State::kAbsent || record.state == State::kPending;
  if (cause.expect != nullptr && unexpected) {
    record.expected = true;
    record.key.attempt = cause.expect->attempt;
    record.peer_epoch = cause.expect->peer_epoch;
    record.num_prompt_tokens = cause.expect->num_prompt_tokens;
    record.num_choices = cause.expect->num_choices;
  }
  if (cause.key != nullptr && !record.has_pair) {
    // An Expected handoff meets its pair with the open; a commit or an abort leaves it as it is.
    if (record.state == State::kAbsent || cause.open != nullptr) {
      record.key = *cause.key;
      record.peer_epoch = x.pairs.find(cause.pair)->peer_epoch;
      bind(record, cause.pair, x);
    }
    if (record.state == State::kAbsent && cause.open != nullptr) {
      record.num_prompt_tokens = cause.open->num_prompt_tokens;
    }
  }
  if (cause.reserved != nullptr && record.state == State::kReserving) {
    record.num_matched_blocks = cause.reserved->num_matched_blocks;
    record.blocks = cause.reserved->blocks;
  }
  if (cause.commit != nullptr && record.state == State::kGranted) record.commit = *cause.commit;
}

void ReceiverTable::run(Step step, const Record& record, const Status& reason, const Reply& reply,
                        Exchange& x) {
  using namespace handoff_action;
  const HandoffId id = record.key.id;
  const auto& [pair, key] = reply;
  switch (step) {
    case Step::kReserve: x.actions.push_back(Reserve{id}); break;
    case Step::kSendGrant:
      assert(record.blocks.size() == num_prompt_blocks(record.num_prompt_tokens) &&
             "a reservation holds the blocks of the prompt");
      x.send(pair, GrantBlocks{key, record.num_matched_blocks, record.blocks});
      break;
    case Step::kSendRefuse: x.send(pair, Refuse{key, reason.code()}); break;
    case Step::kSendRevoke: x.send(pair, Revoke{key}); break;
    case Step::kSendAck: x.send(pair, Ack{key}); break;
    case Step::kSendNack: x.send(pair, Nack{key, reason.code()}); break;
    case Step::kVerify: x.actions.push_back(Verify{id, record.commit->checksum}); break;
    case Step::kActivate: x.actions.push_back(Activate{id, *record.commit}); break;
    case Step::kQuarantine: x.actions.push_back(Quarantine{id}); break;
    case Step::kEndQuarantine: x.actions.push_back(EndQuarantine{id}); break;
    case Step::kDropReservation: x.actions.push_back(DropReservation{id}); break;
    case Step::kLost: x.actions.push_back(Lost{id, reason}); break;
    case Step::kBreakPair:
      if (x.pairs.is_up(record.pair)) x.to_break.emplace_back(record.pair, reason.message());
      break;
  }
}

void ReceiverTable::move(const HandoffId& id, Record&& record, State next, Exchange& x) {
  const State from = record.state;
  if (from == next && is_live(from)) {
    live_[id] = std::move(record);
    return;
  }
  if (from == State::kPending) --x.pairs.find(record.pair)->num_pending;
  num_quarantined_ -= is_quarantined(from) ? 1 : 0;
  num_quarantined_ += is_quarantined(next) ? 1 : 0;
  deadlines_.arm(id, record.deadline, kNoDeadline);
  record.state = next;
  if (!is_live(next)) {
    if (is_live(from) || from == State::kAbsent) {
      auto& tombstones = record.expected ? ended_ : strangers_;
      if (next != State::kAbsent) {
        tombstones.add(id, {next, record.key.attempt, record.has_pair, record.pair});
      }
      unbind(record, x);
    }
    live_.erase(id);
    return;
  }
  if (!is_live(from)) record.arrival = next_arrival_++;
  if (next == State::kPending) ++x.pairs.find(record.pair)->num_pending;
  if (next == State::kExpected) unbind(record, x);
  if (next == State::kCommitted) {
    record.blocks = {};
    record.commit.reset();
  }
  deadlines_.arm(id, record.deadline, deadline_of(record, x));
  live_[id] = std::move(record);
}

uint64_t ReceiverTable::deadline_of(const Record& record, const Exchange& x) const {
  switch (record.state) {
    case State::kPending: return Deadlines::after(x.tick, config_.open_wait_ticks);
    case State::kExpected: return Deadlines::after(x.tick, config_.expect_wait_ticks);
    case State::kQuarantined:
      return x.pairs.is_up(record.pair) ? Deadlines::after(x.tick, config_.quarantine_grace_ticks)
                                        : kNoDeadline;
    default: return kNoDeadline;
  }
}

void ReceiverTable::bind(Record& record, PairId pair, Exchange& x) {
  record.has_pair = true;
  record.pair = pair;
  x.pairs.retain(pair);
}

void ReceiverTable::unbind(Record& record, Exchange& x) {
  if (!record.has_pair) return;
  record.has_pair = false;
  x.pairs.drop(record.pair);
}

// ---- views --------------------------------------------------------------------------------------

const Tombstones<receiver::State>::Tombstone* ReceiverTable::find_tombstone(
    const HandoffId& id) const {
  const auto* tombstone = ended_.find(id);
  return tombstone != nullptr ? tombstone : strangers_.find(id);
}

receiver::State ReceiverTable::state(const HandoffId& id) const {
  const auto it = live_.find(id);
  if (it != live_.end()) return it->second.state;
  const auto* tombstone = find_tombstone(id);
  return tombstone != nullptr ? tombstone->state : State::kAbsent;
}

void ReceiverTable::count_states(std::vector<std::pair<const char*, uint32_t>>& counts) const {
  std::array<uint32_t, receiver::kNumStates> by_state{};
  for (const auto& [id, record] : live_) ++by_state[static_cast<size_t>(record.state)];
  for (size_t i = 0; i < by_state.size(); ++i) {
    if (is_live(static_cast<State>(i))) counts.emplace_back(receiver::kStateNames[i], by_state[i]);
  }
}

void ReceiverTable::describe(std::string& text) const {
  for (const auto& [id, record] : live_) {
    text += "receiver " + to_string(id) + " state " +
            std::to_string(static_cast<int>(record.state)) + " attempt " +
            std::to_string(record.key.attempt) + (record.expected ? " expected" : " unexpected") +
            " from epoch " + std::to_string(record.peer_epoch) + " pair " +
            (record.has_pair ? std::to_string(record.pair) : "none") + " tokens " +
            std::to_string(record.num_prompt_tokens) + " choices " +
            std::to_string(record.num_choices) + " blocks";
    for (const BlockId block : record.blocks) text += " " + std::to_string(block);
    text += " matched " + std::to_string(record.num_matched_blocks) + " deadline " +
            (record.deadline == kNoDeadline ? "none" : std::to_string(record.deadline)) + "\n";
  }
  for (const auto* tombstones : {&ended_, &strangers_}) {
    for (const auto& [id, tombstone] : tombstones->all()) {
      text += "receiver " + to_string(id) + " ended as " +
              std::to_string(static_cast<int>(tombstone.state)) + " attempt " +
              std::to_string(tombstone.attempt) + " pair " +
              (tombstone.has_pair ? std::to_string(tombstone.pair) : "none") + "\n";
    }
  }
}

}  // namespace crossdock
