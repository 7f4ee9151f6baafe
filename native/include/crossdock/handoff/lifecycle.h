// The life of a handoff on each side, as tables: for every state and every input exactly one
// transition, which names the next state, what is done, what is counted and what is said.
//
// The tables (src/handoff/receiver_lifecycle.cpp, sender_lifecycle.cpp) are the protocol. The code
// that owns the records only classifies what happened into an input and carries the steps out, so a
// test can change one cell and prove that a checker notices.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "crossdock/sys/status.h"

namespace crossdock {

// One a kind of outcome, so that every one is visible.
struct HandoffCounters {
  uint64_t commits = 0;
  uint64_t revokes = 0;
  uint64_t aborts = 0;
  uint64_t refused_unknown = 0;      // message for an id nobody knows
  uint64_t refused_incarnation = 0;  // from a pair that is not up, or another pair than the granted
  uint64_t refused_epoch = 0;        // from a peer that is not the one expected
  uint64_t refused_attempt = 0;
  uint64_t refused_mac = 0;  // not the peer's own
  uint64_t refused_checksum = 0;
  uint64_t refused_shape = 0;      // prompt length, number of blocks or choices; checksum not made
  uint64_t refused_malformed = 0;  // the peer's own, and does not parse: the pair is broken
  uint64_t refused_limit = 0;      // too many opens of one pair wait for their Generate
  uint64_t refused_state = 0;      // commit after revoke, and the like
  uint64_t duplicates = 0;
  uint64_t late_messages = 0;  // to a handoff that has ended or is ending
  uint64_t late_events = 0;    // local events for a handoff that has ended
  uint64_t expired = 0;        // bounded waits that ran out
  uint64_t failed_writes = 0;  // handoffs of which a write could not be posted or failed
  uint64_t lost = 0;           // attempts that ended for a reason that is not the caller's
};
using HandoffCounter = uint64_t HandoffCounters::*;  // nullptr: nothing is counted

// Whoever reports the counters goes through these, so that none is forgotten.
struct NamedHandoffCounter {
  const char* name;
  HandoffCounter counter;
};
inline constexpr std::array kHandoffCounters{
    NamedHandoffCounter{"commits", &HandoffCounters::commits},
    NamedHandoffCounter{"revokes", &HandoffCounters::revokes},
    NamedHandoffCounter{"aborts", &HandoffCounters::aborts},
    NamedHandoffCounter{"refused_unknown", &HandoffCounters::refused_unknown},
    NamedHandoffCounter{"refused_incarnation", &HandoffCounters::refused_incarnation},
    NamedHandoffCounter{"refused_epoch", &HandoffCounters::refused_epoch},
    NamedHandoffCounter{"refused_attempt", &HandoffCounters::refused_attempt},
    NamedHandoffCounter{"refused_mac", &HandoffCounters::refused_mac},
    NamedHandoffCounter{"refused_checksum", &HandoffCounters::refused_checksum},
    NamedHandoffCounter{"refused_shape", &HandoffCounters::refused_shape},
    NamedHandoffCounter{"refused_malformed", &HandoffCounters::refused_malformed},
    NamedHandoffCounter{"refused_limit", &HandoffCounters::refused_limit},
    NamedHandoffCounter{"refused_state", &HandoffCounters::refused_state},
    NamedHandoffCounter{"duplicates", &HandoffCounters::duplicates},
    NamedHandoffCounter{"late_messages", &HandoffCounters::late_messages},
    NamedHandoffCounter{"late_events", &HandoffCounters::late_events},
    NamedHandoffCounter{"expired", &HandoffCounters::expired},
    NamedHandoffCounter{"failed_writes", &HandoffCounters::failed_writes},
    NamedHandoffCounter{"lost", &HandoffCounters::lost},
};
static_assert(sizeof(HandoffCounters) == kHandoffCounters.size() * sizeof(uint64_t),
              "every counter has a name");

template <typename State, typename Input, typename Step, size_t kNumStates, size_t kNumInputs>
class Lifecycle {
 public:
  static constexpr size_t kStepsMax = 4;

  struct Transition {
    State next{};
    std::array<Step, kStepsMax> steps{};
    size_t num_steps = 0;
    HandoffCounter counter = nullptr;
    // Said to the peer and to the front, unless the input brings a status of its own.
    StatusCode code = StatusCode::kOk;
    const char* why = "";
    bool defined = false;
  };
  struct Row {
    State from;
    std::initializer_list<Input> inputs;
    State next;
    std::initializer_list<Step> steps;
    HandoffCounter counter = nullptr;
    StatusCode code = StatusCode::kOk;
    const char* why = "";
  };

  explicit Lifecycle(std::span<const Row> rows) {
    for (const Row& row : rows) {
      assert(row.steps.size() <= kStepsMax);
      for (Input input : row.inputs) {
        Transition& cell = at(row.from, input);
        assert(!cell.defined && "two rows for one state and input");
        cell = {row.next, {}, 0, row.counter, row.code, row.why, true};
        for (Step step : row.steps) cell.steps[cell.num_steps++] = step;
      }
    }
    for (const auto& line : cells_) {
      for (const Transition& cell : line) assert(cell.defined && "a state and input without a row");
    }
  }

  Transition& at(State state, Input input) {
    return cells_[static_cast<size_t>(state)][static_cast<size_t>(input)];
  }
  const Transition& at(State state, Input input) const {
    return cells_[static_cast<size_t>(state)][static_cast<size_t>(input)];
  }

 private:
  std::array<std::array<Transition, kNumInputs>, kNumStates> cells_{};
};

namespace receiver {

enum class State : uint8_t {
  kAbsent,         // nobody has spoken of this id, or it is forgotten
  kPending,        // an open waits for its Expect; nothing is held
  kExpected,       // Generate named it; nothing is held
  kReserving,      // the loop was asked for blocks
  kGranted,        // P may write
  kVerifying,      // a valid commit is in; the blocks are being checked against its checksum
  kCommitted,      // decoding
  kRevoked,        // given up while reserving: the answer will be dropped
  kQuarantined,    // given up after the grant: P's writes may still land
  kVerifyRevoked,  // given up while verifying: no write can land, but the check still reads
  kEnded,          // tombstone of a committed handoff
  kFreed,          // tombstone of any other
};
inline constexpr size_t kNumStates = 12;
inline constexpr std::array<const char*, kNumStates> kStateNames{
    "absent",    "pending", "expected",    "reserving",      "granted", "verifying",
    "committed", "revoked", "quarantined", "verify_revoked", "ended",   "freed"};

enum class Input : uint8_t {
  kExpect,
  kExpectLost,    // ... from an epoch that is already lost
  kExpectOther,   // ... while an open of another attempt or epoch waits
  kExpectMisfit,  // ... while an open of another prompt length waits
  kOpen,
  kOpenMisfit,  // of another prompt length
  kOpenOverLimit,
  kReserved,
  kReserveFailed,
  kCommit,          // the shape is right; nothing is to be verified
  kCommitToVerify,  // ... and the checksum is to be verified
  kCommitMisfit,    // the shape is wrong
  kVerified,
  kVerifyFailed,
  kAborted,
  kEnd,
  kPairBroken,
  kWritesProven,  // no write of the pair can land any more
  kPeerLost,
  kExpired,
};
inline constexpr size_t kNumInputs = 20;

enum class Step : uint8_t {
  kReserve,
  kSendGrant,
  kSendRefuse,
  kSendRevoke,
  kSendAck,
  kSendNack,
  kVerify,
  kActivate,
  kQuarantine,
  kEndQuarantine,
  kDropReservation,
  kLost,
  kBreakPair,
};

using Lifecycle = crossdock::Lifecycle<State, Input, Step, kNumStates, kNumInputs>;
const Lifecycle& lifecycle();

}  // namespace receiver

namespace sender {

enum class State : uint8_t {
  kAbsent,
  kWaiting,  // named by Prefill; the prompt has not started
  kOpened,   // open sent; no write before the grant
  kWriting,
  kCommitting,      // every byte is in and fenced, commit sent
  kAborting,        // writes are being stopped
  kAbortingBroken,  // ... on a broken pair: only its closing proves that no source is read
  kDone,            // tombstone: acknowledged
  kAborted,         // tombstone of any other
};
inline constexpr size_t kNumStates = 9;
inline constexpr std::array<const char*, kNumStates> kStateNames{
    "absent",   "waiting",         "opened", "writing", "committing",
    "aborting", "aborting_broken", "done",   "aborted"};

enum class Input : uint8_t {
  kPrepare,
  kPrepareUnpaired,  // no such pair is up
  kBegin,
  kGrant,
  kGrantMisfit,  // its block table does not fit the prompt
  kRefuse,
  kRevoke,
  kAck,
  kNack,
  kWritesArrived,
  kWritesFailed,
  kWritesStopped,
  kCancel,
  kPairBroken,
  kPairClosed,
  kExpired,  // no answer in time
};
inline constexpr size_t kNumInputs = 16;

enum class Step : uint8_t {
  kSendOpen,
  kStartWrites,
  kSendCommit,
  kStopWrites,
  kSendAborted,
  kFinish,
};

using Lifecycle = crossdock::Lifecycle<State, Input, Step, kNumStates, kNumInputs>;
const Lifecycle& lifecycle();

}  // namespace sender

}  // namespace crossdock
