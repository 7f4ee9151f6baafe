// The sender's table.
//
//  1 Prefill names the handoff                                    Absent -> Waiting
//  2 the prompt starts: open                                      -> Opened
//  3 grant: writes are posted                                     -> Writing
//  4 they have arrived (fenced): commit                           -> Committing
//  5 ack                                                          -> Done
//    open and commit wait for their answer no longer than the configuration says
//  6 or somebody gives up: where no write is in flight it ends at once, otherwise the writes are
//    stopped first (-> Aborting); on a broken pair only its closing proves that (-> AbortingBroken)
//
// Every end that the peer does not know of is told by `aborted`, while the pair is up: it means
// that no write of this handoff is or will be in flight, which is true of any id that has ended,
// and is made true of any that is unknown. So a late grant, revoke or nack is always answered by
// it, and the receiver's quarantine always ends.
#include "crossdock/handoff/lifecycle.h"

namespace crossdock::sender {
namespace {

using S = State;
using I = Input;
using D = Step;
using C = StatusCode;
using N = HandoffCounters;

// clang-format off: one paragraph a transition.
const Lifecycle::Row kRows[] = {
    // ---- nobody knows the id ----
    {S::kAbsent, {I::kPrepare}, S::kWaiting, {}},
    {S::kAbsent, {I::kPrepareUnpaired}, S::kAborted, {D::kFinish}, &N::aborts, C::kUnavailable,
     "there is no connection to the decode instance"},
    // `aborted` promises that no write will be posted, so the id is remembered as given up.
    {S::kAbsent, {I::kGrant, I::kGrantMisfit, I::kRevoke, I::kNack}, S::kAborted,
     {D::kSendAborted}, &N::refused_unknown},
    {S::kAbsent, {I::kRefuse, I::kAck}, S::kAbsent, {}, &N::refused_unknown},
    {S::kAbsent, {I::kBegin, I::kWritesArrived, I::kWritesFailed, I::kWritesStopped, I::kCancel,
     I::kPairBroken, I::kPairClosed, I::kExpired}, S::kAbsent, {}, &N::late_events},

    // ---- the prompt has not started ----
    {S::kWaiting, {I::kBegin}, S::kOpened, {D::kSendOpen}},
    {S::kWaiting, {I::kPrepare, I::kPrepareUnpaired}, S::kWaiting, {}, &N::duplicates},
    {S::kWaiting, {I::kGrant, I::kGrantMisfit, I::kAck}, S::kWaiting, {}, &N::refused_state},
    {S::kWaiting, {I::kRefuse}, S::kAborted, {D::kFinish}, &N::aborts, C::kAborted,
     "the decode instance refused the handoff"},
    {S::kWaiting, {I::kRevoke, I::kNack}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kAborted, "the decode instance revoked the handoff"},
    {S::kWaiting, {I::kCancel}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kCancelled, "the request was cancelled"},
    {S::kWaiting, {I::kPairBroken, I::kPairClosed}, S::kAborted, {D::kFinish}, &N::aborts,
     C::kUnavailable, "the connection to the decode instance broke"},
    {S::kWaiting, {I::kWritesArrived, I::kWritesFailed, I::kWritesStopped, I::kExpired},
     S::kWaiting, {}, &N::late_events},

    // ---- open sent; nothing is written before the grant ----
    {S::kOpened, {I::kGrant}, S::kWriting, {D::kStartWrites}},
    {S::kOpened, {I::kGrantMisfit}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::refused_shape,
     C::kInternal, "the decode instance granted another number of blocks than the prompt needs"},
    {S::kOpened, {I::kRefuse}, S::kAborted, {D::kFinish}, &N::aborts, C::kAborted,
     "the decode instance refused the handoff"},
    {S::kOpened, {I::kRevoke, I::kNack}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kAborted, "the decode instance revoked the handoff"},
    {S::kOpened, {I::kCancel}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kCancelled, "the request was cancelled"},
    {S::kOpened, {I::kPairBroken, I::kPairClosed}, S::kAborted, {D::kFinish}, &N::aborts,
     C::kUnavailable, "the connection to the decode instance broke"},
    // A grant that is on its way after all is answered by the tombstone.
    {S::kOpened, {I::kExpired}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::expired,
     C::kUnavailable, "the decode instance did not answer the open in time"},
    {S::kOpened, {I::kAck}, S::kOpened, {}, &N::refused_state},
    {S::kOpened, {I::kPrepare, I::kPrepareUnpaired, I::kBegin}, S::kOpened, {}, &N::duplicates},
    {S::kOpened, {I::kWritesArrived, I::kWritesFailed, I::kWritesStopped}, S::kOpened, {},
     &N::late_events},

    // ---- writes are in flight ----
    {S::kWriting, {I::kWritesArrived}, S::kCommitting, {D::kSendCommit}},
    {S::kWriting, {I::kWritesFailed}, S::kAborting, {D::kStopWrites}, &N::failed_writes,
     C::kUnavailable, "a write to the decode instance failed"},
    {S::kWriting, {I::kRefuse, I::kRevoke, I::kNack}, S::kAborting, {D::kStopWrites}, nullptr,
     C::kAborted, "the decode instance revoked the handoff"},
    {S::kWriting, {I::kCancel}, S::kAborting, {D::kStopWrites}, nullptr, C::kCancelled,
     "the request was cancelled"},
    {S::kWriting, {I::kPairBroken, I::kPairClosed}, S::kAbortingBroken, {D::kStopWrites}, nullptr,
     C::kUnavailable, "the connection to the decode instance broke"},
    {S::kWriting, {I::kGrant, I::kGrantMisfit}, S::kWriting, {}, &N::duplicates},
    {S::kWriting, {I::kAck}, S::kWriting, {}, &N::refused_state},
    {S::kWriting, {I::kPrepare, I::kPrepareUnpaired, I::kBegin}, S::kWriting, {}, &N::duplicates},
    {S::kWriting, {I::kWritesStopped, I::kExpired}, S::kWriting, {}, &N::late_events},

    // ---- every byte is in, commit sent: no operation reads the sources ----
    {S::kCommitting, {I::kAck}, S::kDone, {D::kFinish}, &N::commits},
    {S::kCommitting, {I::kNack}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kAborted, "the decode instance refused the commit"},
    {S::kCommitting, {I::kRevoke}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kAborted, "the decode instance revoked the handoff"},
    {S::kCommitting, {I::kCancel}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts,
     C::kCancelled, "the request was cancelled after its commit was sent"},
    {S::kCommitting, {I::kPairBroken, I::kPairClosed}, S::kAborted, {D::kFinish}, &N::aborts,
     C::kUnavailable,
     "the connection broke before the acknowledgement; the decode stream tells the outcome"},
    {S::kCommitting, {I::kExpired}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::expired,
     C::kUnavailable,
     "the decode instance did not answer the commit in time; its stream tells the outcome"},
    {S::kCommitting, {I::kGrant, I::kGrantMisfit, I::kPrepare, I::kPrepareUnpaired, I::kBegin},
     S::kCommitting, {}, &N::duplicates},
    {S::kCommitting, {I::kRefuse}, S::kCommitting, {}, &N::late_messages},
    {S::kCommitting, {I::kWritesArrived, I::kWritesFailed, I::kWritesStopped}, S::kCommitting, {},
     &N::late_events},

    // ---- writes are being stopped ----
    {S::kAborting, {I::kWritesStopped}, S::kAborted, {D::kSendAborted, D::kFinish}, &N::aborts},
    {S::kAborting, {I::kPairBroken, I::kPairClosed}, S::kAbortingBroken, {}},
    {S::kAborting, {I::kGrant, I::kGrantMisfit, I::kRefuse, I::kRevoke, I::kAck, I::kNack},
     S::kAborting, {}, &N::late_messages},
    {S::kAborting, {I::kPrepare, I::kPrepareUnpaired, I::kBegin}, S::kAborting, {}, &N::duplicates},
    {S::kAborting, {I::kWritesArrived, I::kWritesFailed, I::kCancel, I::kExpired}, S::kAborting,
     {}, &N::late_events},

    // ---- ... on a broken pair ----
    {S::kAbortingBroken, {I::kPairClosed}, S::kAborted, {D::kFinish}, &N::aborts},
    {S::kAbortingBroken, {I::kPairBroken}, S::kAbortingBroken, {}},
    {S::kAbortingBroken, {I::kGrant, I::kGrantMisfit, I::kRefuse, I::kRevoke, I::kAck, I::kNack},
     S::kAbortingBroken, {}, &N::late_messages},
    {S::kAbortingBroken, {I::kPrepare, I::kPrepareUnpaired, I::kBegin}, S::kAbortingBroken, {},
     &N::duplicates},
    {S::kAbortingBroken, {I::kWritesArrived, I::kWritesFailed, I::kWritesStopped, I::kCancel,
     I::kExpired}, S::kAbortingBroken, {}, &N::late_events},

    // ---- tombstones ----
    {S::kDone, {I::kGrant, I::kGrantMisfit, I::kRevoke, I::kNack}, S::kDone, {D::kSendAborted},
     &N::late_messages},
    {S::kDone, {I::kAck}, S::kDone, {}, &N::duplicates},
    {S::kDone, {I::kRefuse}, S::kDone, {}, &N::late_messages},
    {S::kDone, {I::kPrepare, I::kPrepareUnpaired}, S::kDone, {D::kFinish}, &N::duplicates,
     C::kAlreadyExists, "this handoff id has already been used"},
    {S::kDone, {I::kBegin, I::kWritesArrived, I::kWritesFailed, I::kWritesStopped, I::kCancel,
     I::kPairBroken, I::kPairClosed, I::kExpired}, S::kDone, {}, &N::late_events},

    {S::kAborted, {I::kGrant, I::kGrantMisfit, I::kRevoke, I::kNack}, S::kAborted,
     {D::kSendAborted}, &N::late_messages},
    {S::kAborted, {I::kRefuse, I::kAck}, S::kAborted, {}, &N::late_messages},
    {S::kAborted, {I::kPrepare, I::kPrepareUnpaired}, S::kAborted, {D::kFinish}, &N::duplicates,
     C::kAlreadyExists, "this handoff id has already been used or given up"},
    {S::kAborted, {I::kBegin, I::kWritesArrived, I::kWritesFailed, I::kWritesStopped, I::kCancel,
     I::kPairBroken, I::kPairClosed, I::kExpired}, S::kAborted, {}, &N::late_events},
};
// clang-format on

}  // namespace

const Lifecycle& lifecycle() {
  static const Lifecycle table{kRows};
  return table;
}

}  // namespace crossdock::sender
