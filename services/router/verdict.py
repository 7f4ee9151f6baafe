"""What a worker's error means for the request: the one table behind every retry.

The decode stream is the truth about a handoff. A prefill error is a *hint* where the handoff may
have been committed before the error: then the decode stream gets time to speak first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from crossdock.errors import Code, CrossdockError, Reason
from services.router.worker import PAIR_BROKEN, Role

# A decode instance learns of a prefill instance's death within a second, and says so or decodes.
COMMIT_GRACE_S: Final = 2.0
# A refusal reaches both instances' fronts within a message of each other.
REFUSAL_GRACE_S: Final = 0.25


class Kind(Enum):
    """How the request goes on."""

    REFUSED = "refused"  # Another instance may take it; this one is well.
    MISMATCHED = "mismatched"  # Both are well, but make no pair; each may with another.
    LOST = "lost"  # The attempt is gone and the instance at fault is avoided until it reports.
    FATAL = "fatal"  # The error is the caller's answer.


@dataclass(frozen=True, slots=True)
class Verdict:
    """`at_fault` are the roles whose instance is excluded or avoided.

    `grace_s` is how long the decode stream may still speak before a prefill error counts.
    """

    kind: Kind
    at_fault: tuple[Role, ...] = ()
    grace_s: float = 0.0


_BOTH: Final = (Role.PREFILL, Role.DECODE)
_FATAL: Final = Verdict(Kind.FATAL)
_MISMATCHED: Final = Verdict(Kind.MISMATCHED)

_BY_REASON: Final[dict[tuple[Role, str], Verdict]] = {
    (Role.DECODE, Reason.HANDOFF_REFUSED): Verdict(Kind.REFUSED, (Role.DECODE,)),
    (Role.DECODE, Reason.OVERLOADED): Verdict(Kind.REFUSED, (Role.DECODE,)),
    (Role.DECODE, Reason.DRAINING): Verdict(Kind.LOST, (Role.DECODE,)),
    (Role.DECODE, Reason.NOT_READY): Verdict(Kind.LOST, (Role.DECODE,)),
    # Its own engine's restart, or that of the prefill instance that it tried to pair with.
    (Role.DECODE, Reason.ENGINE_RESTARTED): Verdict(Kind.LOST, _BOTH),
    (Role.DECODE, Reason.UNREACHABLE): Verdict(Kind.LOST, (Role.DECODE,)),
    (Role.DECODE, Reason.HANDOFF_LOST): Verdict(Kind.LOST, (Role.PREFILL,)),
    (Role.DECODE, PAIR_BROKEN): Verdict(Kind.LOST, (Role.PREFILL,)),
    (Role.DECODE, Reason.STALE_EPOCH): Verdict(Kind.LOST, _BOTH),
    (Role.DECODE, Reason.LAYOUT_MISMATCH): _MISMATCHED,
    (Role.PREFILL, Reason.LAYOUT_MISMATCH): _MISMATCHED,
    (Role.PREFILL, Reason.OVERLOADED): Verdict(Kind.REFUSED, (Role.PREFILL,)),
    # Either the decode instance refused, which its stream says at once, or there was no room here.
    (Role.PREFILL, Reason.HANDOFF_REFUSED): Verdict(Kind.REFUSED, (Role.PREFILL,), REFUSAL_GRACE_S),
    (Role.PREFILL, Reason.DRAINING): Verdict(Kind.LOST, (Role.PREFILL,)),
    (Role.PREFILL, Reason.NOT_READY): Verdict(Kind.LOST, (Role.PREFILL,)),
    (Role.PREFILL, PAIR_BROKEN): Verdict(Kind.LOST, (Role.DECODE,), COMMIT_GRACE_S),
    (Role.PREFILL, Reason.STALE_EPOCH): Verdict(Kind.LOST, _BOTH),
    (Role.PREFILL, Reason.ENGINE_RESTARTED): Verdict(Kind.LOST, (Role.PREFILL,), COMMIT_GRACE_S),
    (Role.PREFILL, Reason.UNREACHABLE): Verdict(Kind.LOST, (Role.PREFILL,), COMMIT_GRACE_S),
    (Role.PREFILL, Reason.HANDOFF_LOST): Verdict(Kind.LOST, (Role.DECODE,), COMMIT_GRACE_S),
}

_BY_CODE: Final[dict[tuple[Role, Code], Verdict]] = {
    (Role.DECODE, Code.UNAVAILABLE): Verdict(Kind.LOST, (Role.DECODE,)),
    # Nobody but the far side can have cancelled a call that we still wait for.
    (Role.DECODE, Code.CANCELLED): Verdict(Kind.LOST, (Role.DECODE,)),
    (Role.DECODE, Code.ABORTED): Verdict(Kind.LOST, (Role.DECODE,)),
    (Role.DECODE, Code.RESOURCE_EXHAUSTED): Verdict(Kind.REFUSED, (Role.DECODE,)),
    (Role.PREFILL, Code.UNAVAILABLE): Verdict(Kind.LOST, (Role.PREFILL,), COMMIT_GRACE_S),
    (Role.PREFILL, Code.CANCELLED): Verdict(Kind.LOST, (Role.PREFILL,), COMMIT_GRACE_S),
    (Role.PREFILL, Code.ABORTED): Verdict(Kind.LOST, (Role.PREFILL,), COMMIT_GRACE_S),
    # The decode instance does not know the handoff (any more): its stream says why.
    (Role.PREFILL, Code.NOT_FOUND): Verdict(Kind.LOST, (Role.DECODE,), COMMIT_GRACE_S),
    (Role.PREFILL, Code.RESOURCE_EXHAUSTED): Verdict(Kind.REFUSED, (Role.PREFILL,)),
    (Role.PREFILL, Code.INTERNAL): Verdict(Kind.FATAL, grace_s=COMMIT_GRACE_S),
    (Role.PREFILL, Code.UNKNOWN): Verdict(Kind.FATAL, grace_s=COMMIT_GRACE_S),
}


def judge(role: Role, error: CrossdockError, *, streaming: bool = False) -> Verdict:
    """By reason where there is one, else by code. What the table does not know is fatal.

    `streaming`: the decode instance has sent tokens, so it needs the other one no more.
    """
    verdict = _BY_REASON.get((role, error.reason)) or _BY_CODE.get((role, error.code), _FATAL)
    if streaming and verdict.kind is not Kind.FATAL:
        return Verdict(Kind.LOST, (Role.DECODE,))
    return verdict
