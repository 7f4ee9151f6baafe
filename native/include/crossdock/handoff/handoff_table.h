// Every handoff of this engine, on either side, and every transition of it. Sans-IO: events in,
// actions out; ticks are arguments. The loop thread carries the actions out.
//
// Receiver (D):  EXPECTED -> GRANTED -> COMMITTED -> ENDED
//                EXPECTED or GRANTED -> REVOKED (commit or revoke, whichever comes first wins)
//                REVOKED -> QUARANTINED -> FREED
// Sender (P):    WAITING -> OPENED -> WRITING -> COMMITTING -> DONE
//                from each -> ABORTING -> ABORTED
//
// Ended handoffs stay as tombstones (bounded in number): a late message to one is answered, never
// acted upon. Messages of another incarnation, attempt or epoch are refused and counted. That a
// message is the peer's own is settled before it comes here (envelope.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "crossdock/handoff/lifecycle.h"
#include "crossdock/handoff/messages.h"

namespace crossdock {

using PairId = uint32_t;  // equals the transfer layer's PeerId

enum class ReceiverState : uint8_t {
  kExpected,
  kReserving,
  kGranted,
  kCommitted,
  kEnded,
  kRevoked,
  kQuarantined,
  kFreed
};
enum class SenderState : uint8_t {
  kWaiting,
  kOpened,
  kWriting,
  kCommitting,
  kDone,
  kAborting,
  kAborted
};

namespace handoff_event {
// -- pairs (both sides)
struct PairUp {
  PairId pair = 0;
  uint64_t peer_epoch = 0;
  uint64_t incarnation = 0;
};
// The pair is over: D revokes every granted handoff of it, P aborts its own. No message goes out.
struct PairBroken {
  PairId pair = 0;
};
// Proof: no operation of ours is outstanding on the pair (P may free sources), and with
// writes_stopped no write of theirs can land any more (D may end quarantines).
struct PairClosed {
  PairId pair = 0;
  bool writes_stopped = false;
};
struct Arrived {  // under the pair's seal
  PairId pair = 0;
  HandoffMessage message;
};
// What the peer did not seal. No use is made of it, and the pair goes on, so that nobody ends
// handoffs by forging. Only a pair that has brought nothing authentic yet is broken by it: there
// the two engines do not agree on the key, and every wait on it would run out.
struct Forged {
  PairId pair = 0;
};
// A message of the peer's that does not parse: no use is made of it, and the pair is broken.
struct Malformed {
  PairId pair = 0;
  Status why;
};
// -- receiver
struct Expect {  // Generate named this handoff; nothing is held for it yet
  HandoffId id;
  uint32_t attempt = 0;
  uint64_t peer_epoch = 0;  // of the P that will send it
  uint32_t num_prompt_tokens = 0;
  uint32_t num_choices = 1;  // that the commit carries
};
struct Reserved {  // answers the Reserve action
  HandoffId id;
  Status status;
  uint32_t num_matched_blocks = 0;
  std::vector<BlockId> blocks;
};
struct Verified {  // answers the Verify action: do the blocks match the checksum?
  HandoffId id;
  bool ok = false;
};
// The lease ended (caller cancelled, deadline, blocks needed elsewhere) or the request finished.
struct End {
  HandoffId id;
  Status reason;  // OK: the sequence finished
};
// The P of this epoch is gone before or after pairing (liveness channel).
struct PeerLost {
  uint64_t peer_epoch = 0;
};
// -- sender
struct Prepare {  // Prefill named this handoff; it waits for its turn
  HandoffId id;
  uint32_t attempt = 0;
  PairId pair = 0;
  uint32_t num_prompt_tokens = 0;
};
struct Begin {  // the prompt starts: open
  HandoffId id;
};
struct WritesArrived {  // the fence after the last write came back: they are all in
  HandoffId id;
  std::vector<ChoiceState> choices;
  std::array<uint8_t, 16> checksum{};
};
struct WritesFailed {
  HandoffId id;
  Status status;
};
// Answers StopWrites: none is in flight, which only a fence that came back clean proves. Where it
// came back with an error the pair is broken, and PairClosed answers instead; WritesStopped may
// still follow and is ignored.
struct WritesStopped {
  HandoffId id;
};
struct Cancel {  // the caller of Prefill went away, or the prompt failed
  HandoffId id;
  Status reason;
};
// -- both: bounded waits (an open without Generate, an expectation without open, an open or a
// commit without an answer) expire by tick.
struct Tick {};
}  // namespace handoff_event

using HandoffEvent =
    std::variant<handoff_event::PairUp, handoff_event::PairBroken, handoff_event::PairClosed,
                 handoff_event::Arrived, handoff_event::Forged, handoff_event::Malformed,
                 handoff_event::Expect, handoff_event::Reserved, handoff_event::Verified,
                 handoff_event::End, handoff_event::PeerLost, handoff_event::Prepare,
                 handoff_event::Begin, handoff_event::WritesArrived, handoff_event::WritesFailed,
                 handoff_event::WritesStopped, handoff_event::Cancel, handoff_event::Tick>;

namespace handoff_action {
struct Send {
  PairId pair = 0;
  HandoffMessage message;
};
// -- receiver
struct Reserve {  // acquire blocks for the prompt, then answer with Reserved
  HandoffId id;
};
struct Verify {  // check the sent blocks against the checksum, then answer with Verified
  HandoffId id;
  std::array<uint8_t, 16> checksum{};
};
struct Activate {  // committed: decode from here
  HandoffId id;
  Commit commit;
};
struct Quarantine {  // the granted blocks may still be written
  HandoffId id;
};
struct EndQuarantine {
  HandoffId id;
};
// Frees a reservation that was never granted to anyone (revoked while the answer was on its way).
struct DropReservation {
  HandoffId id;
};
// The attempt is lost for a reason that is not the caller's: the front ends the stream with it.
struct Lost {
  HandoffId id;
  Status reason;
};
// -- sender
struct StartWrites {  // granted: blocks[i] of the grant takes block i of the sequence
  HandoffId id;
  uint32_t num_matched_blocks = 0;
  std::vector<BlockId> blocks;
};
struct StopWrites {  // post no more, fence or fail what is in flight, then WritesStopped
  HandoffId id;
};
// The sources are no longer read by any operation; the outcome is final. OK: acknowledged.
struct Finished {
  HandoffId id;
  Status status;
};
// -- both: a peer broke the protocol or its quarantine outlives its bound: close the pair.
struct BreakPair {
  PairId pair = 0;
  std::string reason;
};
}  // namespace handoff_action

using HandoffAction =
    std::variant<handoff_action::Send, handoff_action::Reserve, handoff_action::Verify,
                 handoff_action::Activate, handoff_action::Quarantine,
                 handoff_action::EndQuarantine, handoff_action::DropReservation,
                 handoff_action::Lost, handoff_action::StartWrites, handoff_action::StopWrites,
                 handoff_action::Finished, handoff_action::BreakPair>;

struct HandoffConfig {
  bool verify = false;                  // check the checksum of a commit before acknowledging
  uint64_t open_wait_ticks = 0;         // an open that precedes its Expect
  uint64_t quarantine_grace_ticks = 0;  // no `aborted` by then: the pair is broken for proof
  // P's open or commit without an answer. D gives one within its own waits, so that this runs out
  // only where a message was lost or D stands still.
  uint64_t answer_wait_ticks = UINT64_MAX;
  // An expectation without an open. The caller's lease bounds it already, hence no bound here.
  uint64_t expect_wait_ticks = UINT64_MAX;
  uint32_t tombstones_max = 4096;    // of each side; as many again for ids nobody expected
  uint32_t pending_opens_max = 256;  // of one pair, waiting for their Expect
};

class HandoffTable {
 public:
  explicit HandoffTable(const HandoffConfig& config);
  // With lifecycles of the caller's, which must outlive the table: tests change a cell to prove
  // that a checker notices.
  HandoffTable(const HandoffConfig& config, const receiver::Lifecycle& receiver_lifecycle,
               const sender::Lifecycle& sender_lifecycle);
  HandoffTable(const HandoffTable& other);  // a copy that lives on by itself, for exploration
  HandoffTable& operator=(const HandoffTable& other);
  ~HandoffTable();

  // Appends the actions that follow, in order.
  void on(const HandoffEvent& event, uint64_t tick, std::vector<HandoffAction>& actions);

  // kFreed / kAborted for ids that are unknown or forgotten.
  ReceiverState receiver_state(const HandoffId& id) const;
  SenderState sender_state(const HandoffId& id) const;
  uint32_t num_live() const;  // not counting tombstones
  // The live handoffs of both sides by the name of their state; a state without any is listed too.
  std::vector<std::pair<const char*, uint32_t>> num_by_state() const;
  uint32_t num_quarantined() const;
  const HandoffCounters& counters() const;
  // The earliest tick at which a Tick event would do something; UINT64_MAX when never.
  uint64_t next_tick() const;
  // One line for every pair, record and tombstone; equal texts mean equal futures.
  std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace crossdock
