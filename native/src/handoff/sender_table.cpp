#include "sender_table.h"

#include <algorithm>
#include <utility>

namespace crossdock {
namespace {

bool is_live(sender::State state) {
  return state != sender::State::kAbsent && state != sender::State::kDone &&
         state != sender::State::kAborted;
}

}  // namespace

SenderTable::SenderTable(const HandoffConfig& config, const sender::Lifecycle& lifecycle)
    : config_(config),
      lifecycle_(&lifecycle),
      ended_(config.tombstones_max),
      strangers_(config.tombstones_max) {}

// ---- events to inputs ---------------------------------------------------------------------------

void SenderTable::on(const handoff_event::Prepare& event, Exchange& x) {
  Cause cause;
  cause.prepare = &event;
  apply(event.id, x.pairs.is_up(event.pair) ? Input::kPrepare : Input::kPrepareUnpaired, cause, x);
}

void SenderTable::on(const handoff_event::Begin& event, Exchange& x) {
  apply(event.id, Input::kBegin, Cause{}, x);
}

void SenderTable::on(const handoff_event::WritesArrived& event, Exchange& x) {
  Cause cause;
  cause.arrived = &event;
  apply(event.id, Input::kWritesArrived, cause, x);
}

void SenderTable::on(const handoff_event::WritesFailed& event, Exchange& x) {
  Cause cause;
  cause.reason = event.status;
  apply(event.id, Input::kWritesFailed, cause, x);
}

void SenderTable::on(const handoff_event::WritesStopped& event, Exchange& x) {
  apply(event.id, Input::kWritesStopped, Cause{}, x);
}

void SenderTable::on(const handoff_event::Cancel& event, Exchange& x) {
  Cause cause;
  cause.reason = event.reason;
  apply(event.id, Input::kCancel, cause, x);
}

template <typename Message>
void SenderTable::message(PairId pair, const Message& message, Input input, Cause cause,
                          Exchange& x) {
  const auto it = live_.find(message.key.id);
  if (it != live_.end() && it->second.pair != pair) {
    ++x.counters.refused_incarnation;
    return;
  }
  if (it != live_.end() && it->second.key.attempt != message.key.attempt) {
    ++x.counters.refused_attempt;
    return;
  }
  cause.key = &message.key;
  cause.pair = pair;
  apply(message.key.id, input, cause, x);
}

void SenderTable::on_message(PairId pair, const GrantBlocks& grant, Exchange& x) {
  Cause cause;
  cause.grant = &grant;
  const auto it = live_.find(grant.key.id);
  const bool fits = it == live_.end() ||
                    (grant.blocks.size() == num_prompt_blocks(it->second.num_prompt_tokens) &&
                     grant.num_matched_blocks <= grant.blocks.size());
  message(pair, grant, fits ? Input::kGrant : Input::kGrantMisfit, cause, x);
}

void SenderTable::on_message(PairId pair, const Refuse& refuse, Exchange& x) {
  Cause cause;
  if (refuse.reason != StatusCode::kOk) {
    cause.reason = Status(refuse.reason, "the decode instance refused the handoff");
  }
  message(pair, refuse, Input::kRefuse, cause, x);
}

void SenderTable::on_message(PairId pair, const Revoke& revoke, Exchange& x) {
  message(pair, revoke, Input::kRevoke, Cause{}, x);
}

void SenderTable::on_message(PairId pair, const Ack& ack, Exchange& x) {
  message(pair, ack, Input::kAck, Cause{}, x);
}

void SenderTable::on_message(PairId pair, const Nack& nack, Exchange& x) {
  Cause cause;
  if (nack.reason != StatusCode::kOk) {
    cause.reason = Status(nack.reason, "the decode instance refused the commit");
  }
  message(pair, nack, Input::kNack, cause, x);
}

void SenderTable::apply_on_pair(PairId pair, Input input, Exchange& x) {
  std::vector<std::pair<uint64_t, HandoffId>> concerned;
  for (const auto& [id, record] : live_) {
    if (record.pair == pair) concerned.emplace_back(record.arrival, id);
  }
  // In arrival order, so that one script of events gives one script of actions.
  std::sort(concerned.begin(), concerned.end());
  for (const auto& entry : concerned) apply(entry.second, input, Cause{}, x);
}

void SenderTable::pair_broken(PairId pair, Exchange& x) {
  apply_on_pair(pair, Input::kPairBroken, x);
}

void SenderTable::pair_closed(PairId pair, Exchange& x) {
  apply_on_pair(pair, Input::kPairClosed, x);
}

void SenderTable::expire(Exchange& x) {
  while (const auto id = deadlines_.due(x.tick)) {
    deadlines_.arm(*id, live_.at(*id).deadline, kNoDeadline);
    apply(*id, Input::kExpired, Cause{}, x);
  }
}

// ---- transitions --------------------------------------------------------------------------------

void SenderTable::apply(const HandoffId& id, Input input, const Cause& cause, Exchange& x) {
  Record record;
  const auto it = live_.find(id);
  if (it != live_.end()) {
    record = std::move(it->second);
  } else {
    record.state = state(id);
    record.key.id = id;
  }
  const sender::Lifecycle::Transition& transition = lifecycle_->at(record.state, input);
  if (transition.counter != nullptr) ++(x.counters.*transition.counter);

  if (cause.prepare != nullptr && record.state == State::kAbsent) {
    const Pair* pair = x.pairs.find(cause.prepare->pair);
    record.prepared = true;
    record.key = {id, cause.prepare->attempt, pair != nullptr ? pair->incarnation : 0};
    record.pair = cause.prepare->pair;
    record.num_prompt_tokens = cause.prepare->num_prompt_tokens;
  }
  if (cause.grant != nullptr && record.state == State::kOpened) {
    record.num_blocks = static_cast<uint32_t>(cause.grant->blocks.size());
  }
  if (record.outcome.ok() && transition.code != StatusCode::kOk) {
    record.outcome = cause.reason.ok() ? Status(transition.code, transition.why) : cause.reason;
  }
  for (size_t i = 0; i < transition.num_steps; ++i) run(transition.steps[i], record, cause, x);
  move(id, std::move(record), transition.next, x);
}

void SenderTable::run(Step step, const Record& record, const Cause& cause, Exchange& x) {
  using namespace handoff_action;
  const HandoffId id = record.key.id;
  switch (step) {
    case Step::kSendOpen: x.send(record.pair, Open{record.key, record.num_prompt_tokens}); break;
    case Step::kStartWrites:
      x.actions.push_back(StartWrites{id, cause.grant->num_matched_blocks, cause.grant->blocks});
      break;
    case Step::kSendCommit:
      x.send(record.pair, Commit{record.key, record.num_blocks, cause.arrived->choices,
                                 cause.arrived->checksum});
      break;
    case Step::kStopWrites: x.actions.push_back(StopWrites{id}); break;
    case Step::kSendAborted:
      // An answer echoes the message's key: of an unknown id nothing else is known.
      x.send(cause.key != nullptr ? cause.pair : record.pair,
             Aborted{cause.key != nullptr ? *cause.key : record.key});
      break;
    case Step::kFinish: x.actions.push_back(Finished{id, record.outcome}); break;
  }
}

void SenderTable::move(const HandoffId& id, Record&& record, State next, Exchange& x) {
  const State from = record.state;
  record.state = next;
  if (from != next) {
    const bool awaits_answer = next == State::kOpened || next == State::kCommitting;
    deadlines_.arm(
        id, record.deadline,
        awaits_answer ? Deadlines::after(x.tick, config_.answer_wait_ticks) : kNoDeadline);
  }
  if (is_live(next)) {
    if (!is_live(from)) {
      record.arrival = next_arrival_++;
      x.pairs.retain(record.pair);
    }
    live_[id] = std::move(record);
    return;
  }
  if (!is_live(from) && from == next) return;
  auto& tombstones = record.prepared ? ended_ : strangers_;
  tombstones.add(id, {next, record.key.attempt, record.prepared, record.pair});
  if (!is_live(from)) return;
  live_.erase(id);
  x.pairs.drop(record.pair);
}

// ---- views --------------------------------------------------------------------------------------

sender::State SenderTable::state(const HandoffId& id) const {
  const auto it = live_.find(id);
  if (it != live_.end()) return it->second.state;
  const auto* tombstone = ended_.find(id);
  if (tombstone == nullptr) tombstone = strangers_.find(id);
  return tombstone != nullptr ? tombstone->state : State::kAbsent;
}

void SenderTable::count_states(std::vector<std::pair<const char*, uint32_t>>& counts) const {
  std::array<uint32_t, sender::kNumStates> by_state{};
  for (const auto& [id, record] : live_) ++by_state[static_cast<size_t>(record.state)];
  for (size_t i = 0; i < by_state.size(); ++i) {
    if (is_live(static_cast<State>(i))) counts.emplace_back(sender::kStateNames[i], by_state[i]);
  }
}

void SenderTable::describe(std::string& text) const {
  for (const auto& [id, record] : live_) {
    text += "sender " + to_string(id) + " state " + std::to_string(static_cast<int>(record.state)) +
            " attempt " + std::to_string(record.key.attempt) + " pair " +
            std::to_string(record.pair) + " blocks " + std::to_string(record.num_blocks) +
            " deadline " +
            (record.deadline == kNoDeadline ? "none" : std::to_string(record.deadline)) + "\n";
  }
  for (const auto* tombstones : {&ended_, &strangers_}) {
    for (const auto& [id, tombstone] : tombstones->all()) {
      text += "sender " + to_string(id) + " ended as " +
              std::to_string(static_cast<int>(tombstone.state)) + "\n";
    }
  }
}

}  // namespace crossdock
