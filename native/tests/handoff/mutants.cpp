#include "mutants.h"

#include <initializer_list>
#include <memory>

namespace crossdock::testing {
namespace {

template <typename Lifecycle, typename State, typename Input, typename Step>
std::shared_ptr<Lifecycle> changed(const Lifecycle& original, State state, Input input, State next,
                                   std::initializer_list<Step> steps) {
  auto result = std::make_shared<Lifecycle>(original);
  auto& cell = result->at(state, input);
  cell.next = next;
  cell.num_steps = 0;
  for (const Step step : steps) cell.steps[cell.num_steps++] = step;
  return result;
}

// ---- cells of the receiver's table ----

struct ReceiverMutant {
  const char* decision;
  receiver::State state;
  receiver::Input input;
  receiver::State next;
  std::initializer_list<receiver::Step> steps;
};

namespace receiver_mutants {
using S = receiver::State;
using I = receiver::Input;
using D = receiver::Step;
const ReceiverMutant kMutants[] = {
    {"a commit that is not acknowledged", S::kGranted, I::kCommit, S::kCommitted, {D::kActivate}},
    {"an acknowledgement without activation",
     S::kGranted,
     I::kCommit,
     S::kCommitted,
     {D::kSendAck}},
    {"a second activation", S::kCommitted, I::kCommit, S::kCommitted, {D::kActivate, D::kSendAck}},
    {"blocks freed with the revoke",
     S::kGranted,
     I::kEnd,
     S::kFreed,
     {D::kSendRevoke, D::kQuarantine, D::kEndQuarantine}},
    {"blocks freed with the break",
     S::kGranted,
     I::kPairBroken,
     S::kFreed,
     {D::kQuarantine, D::kLost, D::kEndQuarantine}},
    {"a broken pair taken for proof",
     S::kQuarantined,
     I::kPairBroken,
     S::kFreed,
     {D::kEndQuarantine}},
    {"lost heartbeats taken for proof",
     S::kQuarantined,
     I::kPeerLost,
     S::kFreed,
     {D::kEndQuarantine}},
    {"a grace that is taken for proof",
     S::kQuarantined,
     I::kExpired,
     S::kFreed,
     {D::kEndQuarantine}},
    {"a grace without consequence", S::kQuarantined, I::kExpired, S::kQuarantined, {}},
    {"proof that is ignored", S::kQuarantined, I::kWritesProven, S::kQuarantined, {}},
    {"aborted that is ignored", S::kQuarantined, I::kAborted, S::kQuarantined, {}},
    {"a commit that wins over an earlier revoke",
     S::kQuarantined,
     I::kCommit,
     S::kCommitted,
     {D::kActivate, D::kSendAck}},
    {"a grant that outlives its pair", S::kGranted, I::kPairBroken, S::kGranted, {}},
    {"a handoff that outlives P's abort", S::kGranted, I::kAborted, S::kGranted, {}},
    {"a reservation that is forgotten", S::kRevoked, I::kReserved, S::kFreed, {}},
    {"blocks freed under the check",
     S::kVerifying,
     I::kEnd,
     S::kFreed,
     {D::kSendNack, D::kQuarantine, D::kEndQuarantine}},
    {"a wrong checksum that is accepted",
     S::kVerifying,
     I::kVerifyFailed,
     S::kCommitted,
     {D::kActivate, D::kSendAck}},
    {"an ended id that is not refused", S::kFreed, I::kOpen, S::kFreed, {}},
    {"a loss that nobody is told of",
     S::kGranted,
     I::kPairBroken,
     S::kQuarantined,
     {D::kQuarantine}},
    {"an open that waits for ever", S::kPending, I::kPeerLost, S::kFreed, {}},
    {"an open that nobody names and that is kept", S::kPending, I::kExpired, S::kPending, {}},
    {"a refusal that P is not told of", S::kReserving, I::kReserveFailed, S::kFreed, {D::kLost}},
    {"an expectation that outlives its peer", S::kExpected, I::kPeerLost, S::kExpected, {}},
    {"a lease that ends without an end", S::kExpected, I::kEnd, S::kExpected, {}},
};
}  // namespace receiver_mutants

// ---- cells of the sender's table ----

struct SenderMutant {
  const char* decision;
  sender::State state;
  sender::Input input;
  sender::State next;
  std::initializer_list<sender::Step> steps;
};

namespace sender_mutants {
using S = sender::State;
using I = sender::Input;
using D = sender::Step;
const SenderMutant kMutants[] = {
    {"aborted before the writes are stopped",
     S::kWriting,
     I::kCancel,
     S::kAborted,
     {D::kSendAborted, D::kFinish}},
    {"sources freed when the pair breaks",
     S::kWriting,
     I::kPairBroken,
     S::kAborted,
     {D::kStopWrites, D::kFinish}},
    {"sources freed by an endpoint in error",
     S::kAbortingBroken,
     I::kWritesStopped,
     S::kAborted,
     {D::kFinish}},
    {"sources kept after the pair is closed",
     S::kAbortingBroken,
     I::kPairClosed,
     S::kAbortingBroken,
     {}},
    {"an abort that D is not told of", S::kAborting, I::kWritesStopped, S::kAborted, {D::kFinish}},
    {"a refusal that is ignored", S::kOpened, I::kRefuse, S::kOpened, {}},
    {"a nack that is ignored", S::kCommitting, I::kNack, S::kCommitting, {}},
    {"writes that start twice", S::kWriting, I::kGrant, S::kWriting, {D::kStartWrites}},
    {"success without an acknowledgement",
     S::kWriting,
     I::kWritesArrived,
     S::kDone,
     {D::kSendCommit, D::kFinish}},
    {"a second end", S::kDone, I::kAck, S::kDone, {D::kFinish}},
    {"a cancel before open that D is not told of",
     S::kWaiting,
     I::kCancel,
     S::kAborted,
     {D::kFinish}},
    {"an open that is never given up", S::kOpened, I::kExpired, S::kOpened, {}},
    {"a commit that is never given up", S::kCommitting, I::kExpired, S::kCommitting, {}},
    {"success without an answer", S::kCommitting, I::kExpired, S::kDone, {D::kFinish}},
    {"success on a broken pair", S::kCommitting, I::kPairBroken, S::kDone, {D::kFinish}},
    {"a failed write that is committed", S::kWriting, I::kWritesFailed, S::kCommitting, {}},
    {"an id that is given up and forgotten", S::kAbsent, I::kNack, S::kAbsent, {D::kSendAborted}},
};
}  // namespace sender_mutants

// ---- what the code around the tables looks at ----

struct SightMutant {
  const char* decision;
  void (*change)(WorldConfig&);
};
const SightMutant kSightMutants[] = {
    {"the epoch is ignored", [](WorldConfig& c) { c.blind.epoch = true; }},
    {"the incarnation is ignored", [](WorldConfig& c) { c.blind.incarnation = true; }},
    {"the attempt is ignored", [](WorldConfig& c) { c.blind.attempt = true; }},
    {"the pair that speaks is ignored", [](WorldConfig& c) { c.blind.pair = true; }},
    {"a forgery breaks the pair", [](WorldConfig& c) { c.on_forgery = OnForgery::kAlwaysBreak; }},
    {"a pair without a common key lives on",
     [](WorldConfig& c) { c.on_forgery = OnForgery::kNeverBreak; }},
    {"tombstones are forgotten", [](WorldConfig& c) { c.table.tombstones_max = 0; }},
    {"the checksum is ignored", [](WorldConfig& c) { c.table.verify = false; }},
    {"opens wait without a bound", [](WorldConfig& c) { c.table.open_wait_ticks = UINT64_MAX; }},
    {"quarantines wait without a bound",
     [](WorldConfig& c) { c.table.quarantine_grace_ticks = UINT64_MAX; }},
    {"answers are awaited without a bound",
     [](WorldConfig& c) { c.table.answer_wait_ticks = UINT64_MAX; }},
};

}  // namespace

std::vector<Mutant> mutants() {
  std::vector<Mutant> all;
  for (const ReceiverMutant& m : receiver_mutants::kMutants) {
    const auto wrong = changed(receiver::lifecycle(), m.state, m.input, m.next, m.steps);
    all.push_back({m.decision, [wrong](WorldConfig& c) { c.receiver_lifecycle = wrong.get(); }});
  }
  for (const SenderMutant& m : sender_mutants::kMutants) {
    auto wrong = changed(sender::lifecycle(), m.state, m.input, m.next, m.steps);
    // A handoff that is done has no reason for its end.
    if (m.next == sender::State::kDone) wrong->at(m.state, m.input).code = StatusCode::kOk;
    all.push_back({m.decision, [wrong](WorldConfig& c) { c.sender_lifecycle = wrong.get(); }});
  }
  for (const SightMutant& m : kSightMutants) all.push_back({m.decision, m.change});
  static constexpr const char* kKinds[kNumKinds] = {
      "an open", "a grant", "a refuse", "a revoke", "a commit", "an ack", "a nack", "an aborted"};
  for (uint32_t kind = 0; kind < kNumKinds; ++kind) {
    all.push_back({std::string("the seal of ") + kKinds[kind] + " is not checked",
                   [kind](WorldConfig& c) { c.blind.seals_of = 1u << kind; }});
  }
  return all;
}

}  // namespace crossdock::testing
