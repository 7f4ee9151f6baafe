// One HandoffTable under test, with short ways to feed it and to look at what it asks for.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "crossdock/handoff/handoff_table.h"

namespace crossdock::testing {

namespace event = handoff_event;
namespace action = handoff_action;

inline constexpr HandoffId kId{7, 11};
inline constexpr PairId kPair = 1;
inline constexpr uint64_t kPeerEpoch = 0xE0;
inline constexpr uint64_t kIncarnation = 0x1C;
inline constexpr uint32_t kPromptTokens = 40;  // two blocks
inline constexpr HandoffKey kKey{kId, 1, kIncarnation};

inline Commit whole_commit(uint32_t num_blocks = 2, size_t num_choices = 1, HandoffKey key = kKey) {
  Commit commit{key, num_blocks, std::vector<ChoiceState>(num_choices, ChoiceState{42, 1, 2}), {}};
  commit.checksum.fill(9);
  return commit;
}

// One word an action, in order: what the tests compare.
inline std::string word(const HandoffAction& a) {
  struct Namer {
    std::string operator()(const action::Send& s) const {
      static constexpr const char* kNames[] = {"open",   "grant", "refuse", "revoke",
                                               "commit", "ack",   "nack",   "aborted"};
      return std::string("send-") + kNames[s.message.index()];
    }
    std::string operator()(const action::Reserve&) const { return "reserve"; }
    std::string operator()(const action::Verify&) const { return "verify"; }
    std::string operator()(const action::Activate&) const { return "activate"; }
    std::string operator()(const action::Quarantine&) const { return "quarantine"; }
    std::string operator()(const action::EndQuarantine&) const { return "end-quarantine"; }
    std::string operator()(const action::DropReservation&) const { return "drop-reservation"; }
    std::string operator()(const action::Lost&) const { return "lost"; }
    std::string operator()(const action::StartWrites&) const { return "start-writes"; }
    std::string operator()(const action::StopWrites&) const { return "stop-writes"; }
    std::string operator()(const action::Finished&) const { return "finished"; }
    std::string operator()(const action::BreakPair&) const { return "break-pair"; }
  };
  return std::visit(Namer{}, a);
}

class Table {
 public:
  explicit Table(HandoffConfig config = default_config()) : table_(config) {}

  static HandoffConfig default_config() {
    HandoffConfig config;
    config.open_wait_ticks = 10;
    config.quarantine_grace_ticks = 20;
    return config;
  }

  // Feeds the event and tells what was asked for, e.g. "activate send-ack".
  std::string on(HandoffEvent e) {
    last.clear();
    table_.on(e, tick, last);
    std::string words;
    for (const HandoffAction& a : last) words += (words.empty() ? "" : " ") + word(a);
    return words;
  }
  std::string arrive(HandoffMessage message, PairId pair = kPair) {
    return on(event::Arrived{pair, std::move(message)});
  }
  std::string pair_up(PairId pair = kPair, uint64_t epoch = kPeerEpoch,
                      uint64_t incarnation = kIncarnation) {
    return on(event::PairUp{pair, epoch, incarnation});
  }
  template <typename Action>
  const Action& got() const {
    for (const HandoffAction& a : last) {
      if (const auto* found = std::get_if<Action>(&a)) return *found;
    }
    ADD_FAILURE() << "no such action";
    static const Action kNone{};
    return kNone;
  }
  template <typename Message>
  const Message& sent() const {
    for (const HandoffAction& a : last) {
      const auto* send = std::get_if<action::Send>(&a);
      if (send != nullptr && std::holds_alternative<Message>(send->message)) {
        return std::get<Message>(send->message);
      }
    }
    ADD_FAILURE() << "no such message";
    static const Message kNone{};
    return kNone;
  }

  ReceiverState receiver() const { return table_.receiver_state(kId); }
  SenderState sender() const { return table_.sender_state(kId); }
  HandoffTable& table() { return table_; }
  const HandoffCounters& counters() const { return table_.counters(); }

  uint64_t tick = 100;
  std::vector<HandoffAction> last;

 private:
  HandoffTable table_;
};

}  // namespace crossdock::testing
