// Owns the pairs, and passes every event to the side it concerns. A pair that ends is told to the
// records before anything else learns of it.
#include "crossdock/handoff/handoff_table.h"

#include <algorithm>
#include <cassert>
#include <deque>

#include "crossdock/handoff/lifecycle.h"
#include "pair_table.h"
#include "receiver_table.h"
#include "sender_table.h"

namespace crossdock {
namespace {

// Epochs that are gone never come back, so only those an Expect may still name need remembering.
constexpr size_t kLostEpochsMax = 1024;

}  // namespace

struct HandoffTable::Impl {
  Impl(const HandoffConfig& config, const receiver::Lifecycle& receiver_lifecycle,
       const sender::Lifecycle& sender_lifecycle)
      : receivers(config, receiver_lifecycle), senders(config, sender_lifecycle) {}

  ReceiverTable receivers;
  SenderTable senders;
  PairTable pairs;
  HandoffCounters counters;
  std::deque<uint64_t> lost_epochs;

  bool is_lost(uint64_t epoch) const {
    return std::find(lost_epochs.begin(), lost_epochs.end(), epoch) != lost_epochs.end();
  }

  void break_pair(PairId id, Exchange& x) {
    Pair* pair = pairs.find(id);
    if (pair == nullptr || !pair->up) {
      ++counters.late_events;
      return;
    }
    pair->up = false;  // first, so that nothing more is said on it
    const uint64_t peer_epoch = pair->peer_epoch;
    receivers.pair_broken(id, peer_epoch, x);
    senders.pair_broken(id, x);
  }

  void on(const handoff_event::PairUp& event, Exchange& x) {
    if (pairs.find(event.pair) != nullptr) {
      ++counters.duplicates;
      return;
    }
    std::erase(lost_epochs, event.peer_epoch);
    // The fronts make a new pair only after the peer confirmed that the old one is closed, so its
    // writes are over. Our own operations on it end with its PairClosed, as ever.
    std::vector<PairId> superseded;
    for (const auto& [id, pair] : pairs.all()) {
      if (pair.peer_epoch == event.peer_epoch) superseded.push_back(id);
    }
    for (PairId id : superseded) {
      if (pairs.is_up(id)) {
        break_pair(id, x);
        x.actions.push_back(
            handoff_action::BreakPair{id, "a newer pair with the same peer took its place"});
      }
      receivers.writes_proven(id, x);
    }
    pairs.add(event.pair,
              {.peer_epoch = event.peer_epoch, .incarnation = event.incarnation, .up = true});
  }

  void on(const handoff_event::PairBroken& event, Exchange& x) { break_pair(event.pair, x); }

  void on(const handoff_event::PairClosed& event, Exchange& x) {
    if (pairs.find(event.pair) == nullptr) {
      ++counters.late_events;
      return;
    }
    if (pairs.is_up(event.pair)) break_pair(event.pair, x);
    if (event.writes_stopped) receivers.writes_proven(event.pair, x);
    senders.pair_closed(event.pair, x);
    if (Pair* pair = pairs.find(event.pair)) pair->closed = true;
    pairs.forget_if_over(event.pair);
  }

  void on(const handoff_event::Arrived& event, Exchange& x) {
    Pair* pair = pairs.find(event.pair);
    if (pair == nullptr || !pair->up || key_of(event.message).incarnation != pair->incarnation) {
      ++counters.refused_incarnation;
      return;
    }
    pair->heard = true;
    std::visit([&](const auto& message) { deliver(event.pair, message, x); }, event.message);
  }

  void on(const handoff_event::Forged& event, Exchange& x) {
    ++counters.refused_mac;
    const Pair* pair = pairs.find(event.pair);
    if (pair == nullptr || pair->heard) return;
    x.to_break.emplace_back(event.pair,
                            "its first message is not sealed under the pair's key: the two engines "
                            "do not agree on it, or speak different versions");
  }

  void on(const handoff_event::Malformed& event, Exchange& x) {
    if (!pairs.is_up(event.pair)) {
      ++counters.refused_incarnation;
      return;
    }
    ++counters.refused_malformed;
    x.to_break.emplace_back(event.pair, event.why.message());
  }

  template <typename Message>
  void deliver(PairId pair, const Message& message, Exchange& x) {
    if constexpr (requires { receivers.on_message(pair, message, x); }) {
      receivers.on_message(pair, message, x);
    } else {
      senders.on_message(pair, message, x);
    }
  }

  void on(const handoff_event::Expect& event, Exchange& x) {
    receivers.on(event, is_lost(event.peer_epoch), x);
  }

  void on(const handoff_event::PeerLost& event, Exchange& x) {
    if (!is_lost(event.peer_epoch)) lost_epochs.push_back(event.peer_epoch);
    if (lost_epochs.size() > kLostEpochsMax) lost_epochs.pop_front();
    receivers.peer_lost(event.peer_epoch, x);
  }

  void on(const handoff_event::Tick&, Exchange& x) {
    receivers.expire(x);
    senders.expire(x);
  }

  template <typename Event>
  void on(const Event& event, Exchange& x) {
    if constexpr (requires { receivers.on(event, x); }) {
      receivers.on(event, x);
    } else {
      senders.on(event, x);
    }
  }
};

HandoffTable::HandoffTable(const HandoffConfig& config)
    : HandoffTable(config, receiver::lifecycle(), sender::lifecycle()) {}

HandoffTable::HandoffTable(const HandoffConfig& config,
                           const receiver::Lifecycle& receiver_lifecycle,
                           const sender::Lifecycle& sender_lifecycle)
    : impl_(std::make_unique<Impl>(config, receiver_lifecycle, sender_lifecycle)) {}

HandoffTable::HandoffTable(const HandoffTable& other)
    : impl_(std::make_unique<Impl>(*other.impl_)) {}

HandoffTable& HandoffTable::operator=(const HandoffTable& other) {
  impl_ = std::make_unique<Impl>(*other.impl_);
  return *this;
}

HandoffTable::~HandoffTable() = default;

void HandoffTable::on(const HandoffEvent& event, uint64_t tick,
                      std::vector<HandoffAction>& actions) {
  Exchange x{tick, impl_->pairs, impl_->counters, actions, {}};
  std::visit([&](const auto& e) { impl_->on(e, x); }, event);
  for (const auto& [pair, reason] : x.to_break) {
    if (!impl_->pairs.is_up(pair)) continue;
    impl_->break_pair(pair, x);
    actions.push_back(handoff_action::BreakPair{pair, reason});
  }
}

ReceiverState HandoffTable::receiver_state(const HandoffId& id) const {
  switch (impl_->receivers.state(id)) {
    case receiver::State::kExpected: return ReceiverState::kExpected;
    case receiver::State::kReserving: return ReceiverState::kReserving;
    case receiver::State::kGranted:
    case receiver::State::kVerifying: return ReceiverState::kGranted;
    case receiver::State::kCommitted: return ReceiverState::kCommitted;
    case receiver::State::kRevoked: return ReceiverState::kRevoked;
    case receiver::State::kQuarantined:
    case receiver::State::kVerifyRevoked: return ReceiverState::kQuarantined;
    case receiver::State::kEnded: return ReceiverState::kEnded;
    case receiver::State::kAbsent:
    case receiver::State::kPending:
    case receiver::State::kFreed: break;
  }
  return ReceiverState::kFreed;
}

SenderState HandoffTable::sender_state(const HandoffId& id) const {
  switch (impl_->senders.state(id)) {
    case sender::State::kWaiting: return SenderState::kWaiting;
    case sender::State::kOpened: return SenderState::kOpened;
    case sender::State::kWriting: return SenderState::kWriting;
    case sender::State::kCommitting: return SenderState::kCommitting;
    case sender::State::kAborting:
    case sender::State::kAbortingBroken: return SenderState::kAborting;
    case sender::State::kDone: return SenderState::kDone;
    case sender::State::kAbsent:
    case sender::State::kAborted: break;
  }
  return SenderState::kAborted;
}

uint32_t HandoffTable::num_live() const {
  return impl_->receivers.num_live() + impl_->senders.num_live();
}

std::vector<std::pair<const char*, uint32_t>> HandoffTable::num_by_state() const {
  std::vector<std::pair<const char*, uint32_t>> counts;
  impl_->receivers.count_states(counts);
  impl_->senders.count_states(counts);
  return counts;
}

uint32_t HandoffTable::num_quarantined() const { return impl_->receivers.num_quarantined(); }

const HandoffCounters& HandoffTable::counters() const { return impl_->counters; }

uint64_t HandoffTable::next_tick() const {
  return std::min(impl_->receivers.next_tick(), impl_->senders.next_tick());
}

std::string HandoffTable::describe() const {
  std::string text;
  for (const uint64_t epoch : impl_->lost_epochs) text += "lost " + std::to_string(epoch) + "\n";
  for (const auto& [id, pair] : impl_->pairs.all()) {
    text += "pair " + std::to_string(id) + " epoch " + std::to_string(pair.peer_epoch) +
            " incarnation " + std::to_string(pair.incarnation) +
            (pair.up       ? " up"
             : pair.closed ? " closed"
                           : " broken") +
            (pair.heard ? " heard" : "") + " handoffs " + std::to_string(pair.num_handoffs) + "\n";
  }
  impl_->receivers.describe(text);
  impl_->senders.describe(text);
  return text;
}

}  // namespace crossdock
