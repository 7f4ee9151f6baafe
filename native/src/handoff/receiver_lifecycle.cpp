// The receiver's table.
//
//  1 Expect (Generate) and open (P) meet, in either order        Absent -> Expected | Pending
//  2 the loop is asked for blocks                                 -> Reserving
//  3 it has them: grant                                           -> Granted
//  4 commit that fits the grant; verified where that is on        -> (Verifying) -> Committed
//  5 the sequence finishes                                        -> Ended
//  6 or, before 4, somebody gives up: what nobody was told of is dropped (-> Revoked -> Freed),
//    what P may be writing to is quarantined (-> Quarantined) until a proof: aborted, a commit,
//    or the end of the pair                                       -> Freed
//
// A valid commit that has arrived wins over a broken pair and a lost peer even while it is being
// verified: its bytes are in, and nothing more is needed of P. Only the end of the lease or a wrong
// checksum undoes it.
//
// `lost` comes before `end-quarantine`: the front hears of the loss while the handoff still exists.
#include "crossdock/handoff/lifecycle.h"

namespace crossdock::receiver {
namespace {

using S = State;
using I = Input;
using D = Step;
using C = StatusCode;
using N = HandoffCounters;

// clang-format off: one paragraph a transition.
const Lifecycle::Row kRows[] = {
    // ---- nobody knows the id ----
    {S::kAbsent, {I::kExpect, I::kExpectOther, I::kExpectMisfit}, S::kExpected, {}},
    {S::kAbsent, {I::kExpectLost}, S::kFreed, {D::kLost}, &N::lost, C::kUnavailable,
     "the prefill instance is gone; try another one"},
    {S::kAbsent, {I::kOpen, I::kOpenMisfit}, S::kPending, {}},
    {S::kAbsent, {I::kOpenOverLimit}, S::kFreed, {D::kSendRefuse}, &N::refused_limit,
     C::kResourceExhausted, "too many opens of this pair wait for their Generate"},
    // An id that its P has done with is remembered, so that an Expect on its way ends at once.
    {S::kAbsent, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kFreed,
     {D::kSendNack}, &N::refused_unknown, C::kNotFound, "no handoff of this id is expected"},
    {S::kAbsent, {I::kAborted}, S::kFreed, {}, &N::refused_unknown},
    // A reservation that nobody waits for is given back rather than kept for ever.
    {S::kAbsent, {I::kReserved}, S::kAbsent, {D::kDropReservation}, &N::late_events},
    {S::kAbsent, {I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kEnd, I::kPairBroken,
     I::kWritesProven, I::kPeerLost, I::kExpired}, S::kAbsent, {}, &N::late_events},

    // ---- an open waits for its Expect ----
    {S::kPending, {I::kExpect}, S::kReserving, {D::kReserve}},
    {S::kPending, {I::kExpectOther}, S::kExpected, {D::kSendRefuse}, &N::refused_attempt,
     C::kFailedPrecondition, "the open names another attempt or comes from another epoch"},
    {S::kPending, {I::kExpectMisfit}, S::kFreed, {D::kSendRefuse, D::kLost}, &N::refused_shape,
     C::kFailedPrecondition, "prefill and decode were given prompts of different lengths"},
    {S::kPending, {I::kExpectLost}, S::kFreed, {D::kSendRefuse, D::kLost}, &N::lost,
     C::kUnavailable, "the prefill instance is gone; try another one"},
    {S::kPending, {I::kOpen, I::kOpenMisfit, I::kOpenOverLimit}, S::kPending, {}, &N::duplicates},
    {S::kPending, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kFreed,
     {D::kSendNack}, &N::refused_state, C::kFailedPrecondition, "a commit without a grant"},
    {S::kPending, {I::kAborted}, S::kFreed, {}, &N::aborts},
    {S::kPending, {I::kPairBroken}, S::kFreed, {}, &N::aborts},
    {S::kPending, {I::kPeerLost}, S::kFreed, {D::kSendRefuse}, &N::aborts, C::kUnavailable,
     "the prefill instance is taken for gone"},
    {S::kPending, {I::kExpired}, S::kFreed, {D::kSendRefuse}, &N::expired, C::kNotFound,
     "no Generate named this handoff in time"},
    {S::kPending, {I::kReserved}, S::kPending, {D::kDropReservation}, &N::late_events},
    {S::kPending, {I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kEnd, I::kWritesProven},
     S::kPending, {}, &N::late_events},

    // ---- expected: nothing is held ----
    {S::kExpected, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit}, S::kExpected,
     {}, &N::duplicates},
    {S::kExpected, {I::kOpen, I::kOpenOverLimit}, S::kReserving, {D::kReserve}},
    {S::kExpected, {I::kOpenMisfit}, S::kFreed, {D::kSendRefuse, D::kLost}, &N::refused_shape,
     C::kFailedPrecondition, "prefill and decode were given prompts of different lengths"},
    {S::kExpected, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit},
     S::kExpected, {D::kSendNack}, &N::refused_state, C::kFailedPrecondition,
     "a commit without a grant"},
    {S::kExpected, {I::kAborted}, S::kFreed, {D::kLost}, &N::aborts, C::kAborted,
     "the prefill instance gave the handoff up"},
    {S::kExpected, {I::kEnd}, S::kFreed, {}, &N::revokes},
    {S::kExpected, {I::kPairBroken}, S::kFreed, {D::kLost}, &N::lost, C::kUnavailable,
     "the connection to the prefill instance broke"},
    {S::kExpected, {I::kPeerLost}, S::kFreed, {D::kLost}, &N::lost, C::kUnavailable,
     "the prefill instance is gone; try another one"},
    {S::kExpected, {I::kExpired}, S::kFreed, {D::kLost}, &N::expired, C::kDeadlineExceeded,
     "the prefill instance did not open the handoff in time"},
    {S::kExpected, {I::kReserved}, S::kExpected, {D::kDropReservation}, &N::late_events},
    {S::kExpected, {I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kWritesProven},
     S::kExpected, {}, &N::late_events},

    // ---- the loop was asked for blocks ----
    {S::kReserving, {I::kReserved}, S::kGranted, {D::kSendGrant}},
    {S::kReserving, {I::kReserveFailed}, S::kFreed, {D::kSendRefuse, D::kLost}, &N::lost,
     C::kResourceExhausted, "the decode instance has no room for the prompt"},
    {S::kReserving, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit, I::kOpen,
     I::kOpenOverLimit}, S::kReserving, {}, &N::duplicates},
    {S::kReserving, {I::kOpenMisfit}, S::kReserving, {}, &N::refused_shape},
    {S::kReserving, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit},
     S::kReserving, {D::kSendNack}, &N::refused_state, C::kFailedPrecondition,
     "a commit without a grant"},
    {S::kReserving, {I::kAborted}, S::kRevoked, {D::kLost}, &N::aborts, C::kAborted,
     "the prefill instance gave the handoff up"},
    {S::kReserving, {I::kEnd}, S::kRevoked, {D::kSendRefuse}, &N::revokes, C::kCancelled,
     "the request ended"},
    {S::kReserving, {I::kPairBroken}, S::kRevoked, {D::kLost}, &N::lost, C::kUnavailable,
     "the connection to the prefill instance broke"},
    {S::kReserving, {I::kPeerLost}, S::kRevoked, {D::kSendRefuse, D::kLost}, &N::lost,
     C::kUnavailable, "the prefill instance is gone; try another one"},
    {S::kReserving, {I::kVerified, I::kVerifyFailed, I::kWritesProven, I::kExpired}, S::kReserving,
     {}, &N::late_events},

    // ---- granted: P may write ----
    {S::kGranted, {I::kOpen, I::kOpenOverLimit}, S::kGranted, {D::kSendGrant}, &N::duplicates},
    {S::kGranted, {I::kOpenMisfit}, S::kGranted, {D::kSendRefuse}, &N::refused_shape,
     C::kFailedPrecondition, "the open names another prompt length than the granted one"},
    {S::kGranted, {I::kCommit}, S::kCommitted, {D::kActivate, D::kSendAck}, &N::commits},
    {S::kGranted, {I::kCommitToVerify}, S::kVerifying, {D::kVerify}},
    // A misfit still proves that P's writes are done.
    {S::kGranted, {I::kCommitMisfit}, S::kFreed, {D::kSendNack, D::kQuarantine, D::kLost,
     D::kEndQuarantine}, &N::refused_shape, C::kFailedPrecondition,
     "the commit does not fit the grant (blocks, choices, or no checksum where one is verified)"},
    {S::kGranted, {I::kAborted}, S::kFreed, {D::kQuarantine, D::kLost, D::kEndQuarantine},
     &N::aborts, C::kAborted, "the prefill instance gave the handoff up"},
    {S::kGranted, {I::kEnd}, S::kQuarantined, {D::kSendRevoke, D::kQuarantine}, &N::revokes},
    {S::kGranted, {I::kPairBroken}, S::kQuarantined, {D::kQuarantine, D::kLost}, &N::lost,
     C::kUnavailable, "the connection to the prefill instance broke"},
    {S::kGranted, {I::kPeerLost}, S::kQuarantined, {D::kSendRevoke, D::kQuarantine, D::kLost},
     &N::lost, C::kUnavailable, "the prefill instance is gone; try another one"},
    {S::kGranted, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit}, S::kGranted, {},
     &N::duplicates},
    {S::kGranted, {I::kReserved, I::kReserveFailed, I::kVerified, I::kVerifyFailed,
     I::kWritesProven, I::kExpired}, S::kGranted, {}, &N::late_events},

    // ---- a valid commit is being verified ----
    {S::kVerifying, {I::kVerified}, S::kCommitted, {D::kActivate, D::kSendAck}, &N::commits},
    {S::kVerifying, {I::kVerifyFailed}, S::kFreed, {D::kSendNack, D::kQuarantine, D::kLost,
     D::kEndQuarantine}, &N::refused_checksum, C::kDataLoss,
     "the blocks that arrived do not match the commit's checksum"},
    {S::kVerifying, {I::kEnd}, S::kVerifyRevoked, {D::kSendNack, D::kQuarantine}, &N::revokes,
     C::kCancelled, "the request ended"},
    {S::kVerifying, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit, I::kOpen,
     I::kOpenMisfit, I::kOpenOverLimit, I::kCommit, I::kCommitToVerify, I::kCommitMisfit},
     S::kVerifying, {}, &N::duplicates},
    {S::kVerifying, {I::kAborted}, S::kVerifying, {}, &N::late_messages},
    {S::kVerifying, {I::kPairBroken, I::kWritesProven, I::kPeerLost}, S::kVerifying, {}},
    {S::kVerifying, {I::kReserved, I::kReserveFailed, I::kExpired}, S::kVerifying, {},
     &N::late_events},

    // ---- committed: P is no longer needed ----
    {S::kCommitted, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kCommitted,
     {D::kSendAck}, &N::duplicates},
    {S::kCommitted, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit, I::kOpen,
     I::kOpenMisfit, I::kOpenOverLimit}, S::kCommitted, {}, &N::duplicates},
    {S::kCommitted, {I::kAborted}, S::kCommitted, {}, &N::late_messages},
    {S::kCommitted, {I::kEnd}, S::kEnded, {}},
    {S::kCommitted, {I::kPairBroken, I::kWritesProven, I::kPeerLost}, S::kCommitted, {}},
    {S::kCommitted, {I::kReserved, I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kExpired},
     S::kCommitted, {}, &N::late_events},

    // ---- given up while reserving ----
    {S::kRevoked, {I::kReserved}, S::kFreed, {D::kDropReservation}},
    {S::kRevoked, {I::kReserveFailed}, S::kFreed, {}},
    {S::kRevoked, {I::kOpen, I::kOpenMisfit, I::kOpenOverLimit}, S::kRevoked, {D::kSendRefuse},
     &N::refused_state, C::kAborted, "the handoff was revoked"},
    {S::kRevoked, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kRevoked,
     {D::kSendNack}, &N::refused_state, C::kAborted, "the handoff was revoked"},
    {S::kRevoked, {I::kAborted}, S::kRevoked, {}, &N::late_messages},
    {S::kRevoked, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit}, S::kRevoked, {},
     &N::duplicates},
    {S::kRevoked, {I::kPairBroken, I::kWritesProven, I::kPeerLost}, S::kRevoked, {}},
    {S::kRevoked, {I::kVerified, I::kVerifyFailed, I::kEnd, I::kExpired}, S::kRevoked, {},
     &N::late_events},

    // ---- given up after the grant: writes may land ----
    {S::kQuarantined, {I::kAborted}, S::kFreed, {D::kEndQuarantine}, &N::aborts},
    {S::kQuarantined, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kFreed, {D::kSendNack,
     D::kEndQuarantine}, &N::refused_state, C::kAborted, "the handoff was revoked"},
    {S::kQuarantined, {I::kWritesProven}, S::kFreed, {D::kEndQuarantine}},
    {S::kQuarantined, {I::kExpired}, S::kQuarantined, {D::kBreakPair}, &N::expired,
     C::kDeadlineExceeded, "a revoked handoff was not aborted in time"},
    {S::kQuarantined, {I::kOpen, I::kOpenMisfit, I::kOpenOverLimit}, S::kQuarantined,
     {D::kSendRefuse}, &N::refused_state, C::kAborted, "the handoff was revoked"},
    {S::kQuarantined, {I::kPairBroken, I::kPeerLost}, S::kQuarantined, {}},
    {S::kQuarantined, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit},
     S::kQuarantined, {}, &N::duplicates},
    {S::kQuarantined, {I::kReserved, I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kEnd},
     S::kQuarantined, {}, &N::late_events},

    // ---- given up while verifying: only the check itself still reads the blocks ----
    {S::kVerifyRevoked, {I::kVerified, I::kVerifyFailed}, S::kFreed, {D::kEndQuarantine}},
    {S::kVerifyRevoked, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit},
     S::kVerifyRevoked, {D::kSendNack}, &N::refused_state, C::kAborted, "the handoff was revoked"},
    {S::kVerifyRevoked, {I::kOpen, I::kOpenMisfit, I::kOpenOverLimit}, S::kVerifyRevoked,
     {D::kSendRefuse}, &N::refused_state, C::kAborted, "the handoff was revoked"},
    {S::kVerifyRevoked, {I::kAborted}, S::kVerifyRevoked, {}, &N::late_messages},
    {S::kVerifyRevoked, {I::kPairBroken, I::kWritesProven, I::kPeerLost}, S::kVerifyRevoked, {}},
    {S::kVerifyRevoked, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit},
     S::kVerifyRevoked, {}, &N::duplicates},
    {S::kVerifyRevoked, {I::kReserved, I::kReserveFailed, I::kEnd, I::kExpired}, S::kVerifyRevoked,
     {}, &N::late_events},

    // ---- tombstones ----
    {S::kEnded, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kEnded, {D::kSendAck},
     &N::duplicates},
    {S::kEnded, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit}, S::kEnded,
     {D::kLost}, &N::lost, C::kAlreadyExists, "this handoff id has already been used"},
    {S::kEnded, {I::kOpen, I::kOpenMisfit, I::kOpenOverLimit}, S::kEnded, {D::kSendRefuse},
     &N::refused_state, C::kAborted, "the handoff has ended"},
    {S::kEnded, {I::kAborted}, S::kEnded, {}, &N::late_messages},
    {S::kEnded, {I::kReserved}, S::kEnded, {D::kDropReservation}, &N::late_events},
    {S::kEnded, {I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kEnd, I::kPairBroken,
     I::kWritesProven, I::kPeerLost, I::kExpired}, S::kEnded, {}, &N::late_events},

    {S::kFreed, {I::kExpect, I::kExpectLost, I::kExpectOther, I::kExpectMisfit}, S::kFreed,
     {D::kLost}, &N::lost, C::kAborted, "the handoff had already been refused or given up"},
    {S::kFreed, {I::kOpen, I::kOpenMisfit, I::kOpenOverLimit}, S::kFreed, {D::kSendRefuse},
     &N::refused_state, C::kAborted, "the handoff has ended"},
    {S::kFreed, {I::kCommit, I::kCommitToVerify, I::kCommitMisfit}, S::kFreed,
     {D::kSendNack}, &N::refused_state, C::kAborted, "the handoff has ended"},
    {S::kFreed, {I::kAborted}, S::kFreed, {}, &N::late_messages},
    {S::kFreed, {I::kReserved}, S::kFreed, {D::kDropReservation}, &N::late_events},
    {S::kFreed, {I::kReserveFailed, I::kVerified, I::kVerifyFailed, I::kEnd, I::kPairBroken,
     I::kWritesProven, I::kPeerLost, I::kExpired}, S::kFreed, {}, &N::late_events},
};
// clang-format on

}  // namespace

const Lifecycle& lifecycle() {
  static const Lifecycle table{kRows};
  return table;
}

}  // namespace crossdock::receiver
