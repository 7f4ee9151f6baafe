"""The one error type that crosses services, and the one table of what its codes mean outside.

Everything that fails for a reason other than a bug raises `CrossdockError`. The servicer side turns
it into a gRPC status with rich details, the router into an HTTP answer, and a client turns a
status back into the same error, so that a reason survives any number of hops.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class Code(IntEnum):
    """What kind of failure it is. Values are those of gRPC and of the engine."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(StrEnum):
    """Why, for programs: `google.rpc.ErrorInfo.reason` in the domain `crossdock`."""

    ALREADY_LIVE = "ALREADY_LIVE"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    DRAINING = "DRAINING"
    ENGINE_RESTARTED = "ENGINE_RESTARTED"
    HANDOFF_LOST = "HANDOFF_LOST"
    HANDOFF_REFUSED = "HANDOFF_REFUSED"
    INTERNAL = "INTERNAL"
    INVALID_FIELD = "INVALID_FIELD"
    LAYOUT_MISMATCH = "LAYOUT_MISMATCH"
    NOT_FOUND = "NOT_FOUND"
    NOT_READY = "NOT_READY"
    OVERLOADED = "OVERLOADED"
    STALE_EPOCH = "STALE_EPOCH"
    UNREACHABLE = "UNREACHABLE"
    UNSUPPORTED = "UNSUPPORTED"


ERROR_DOMAIN: Final = "crossdock"
_EXCERPT_CHARACTERS_MAX: Final = 64

# The HTTP status of each code, as the OpenAI-compatible surface answers it.
HTTP_STATUS: Final[dict[Code, int]] = {
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


class CrossdockError(Exception):
    """An operating error: what happened, why, and for the caller what to do about it.

    `field` names the argument at fault, `retry_after_s` says when another try may succeed.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        reason: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = str(reason)
        self.field = field
        self.retry_after_s = retry_after_s

    @property
    def http_status(self) -> int:
        return HTTP_STATUS[self.code]

    def __repr__(self) -> str:
        return f"CrossdockError({self.code.name}, {self.message!r}, {self.reason})"


def excerpt(text: str) -> str:
    """What an error may repeat of a caller's text: bounded, and with an encoding in UTF-8."""
    shown = text if len(text) <= _EXCERPT_CHARACTERS_MAX else text[:_EXCERPT_CHARACTERS_MAX] + "..."
    return shown.encode("utf-8", errors="replace").decode("utf-8")


def invalid_argument(field: str, message: str) -> CrossdockError:
    """The message names the bound; the field comes before it."""
    return CrossdockError(
        Code.INVALID_ARGUMENT, f"{field}: {message}", Reason.INVALID_FIELD, field=field
    )


def unsupported(field: str) -> CrossdockError:
    """A field that is known but not built: refused by name rather than ignored."""
    return CrossdockError(
        Code.INVALID_ARGUMENT,
        f"{field}: not supported; leave it unset",
        Reason.UNSUPPORTED,
        field=field,
    )


def already_live(field: str, value: str) -> CrossdockError:
    return CrossdockError(
        Code.ALREADY_EXISTS,
        f"{field} {value!r} is in use by a live request; use another",
        Reason.ALREADY_LIVE,
        field=field,
    )


def not_found(message: str) -> CrossdockError:
    return CrossdockError(Code.NOT_FOUND, message, Reason.NOT_FOUND)


def overloaded(message: str, retry_after_s: float = 1.0) -> CrossdockError:
    return CrossdockError(
        Code.RESOURCE_EXHAUSTED, message, Reason.OVERLOADED, retry_after_s=retry_after_s
    )


def handoff_refused(message: str) -> CrossdockError:
    """The decode instance has no room for the prompt now."""
    return CrossdockError(
        Code.RESOURCE_EXHAUSTED, message, Reason.HANDOFF_REFUSED, retry_after_s=1.0
    )


def handoff_lost(message: str) -> CrossdockError:
    """The prompt's KV will not arrive any more: a new attempt may be made."""
    return CrossdockError(Code.UNAVAILABLE, message, Reason.HANDOFF_LOST)


def draining(instance_id: str) -> CrossdockError:
    return CrossdockError(
        Code.UNAVAILABLE,
        f"{instance_id} is draining and takes no new calls; use another instance",
        Reason.DRAINING,
    )


def engine_restarted(message: str) -> CrossdockError:
    return CrossdockError(Code.UNAVAILABLE, message, Reason.ENGINE_RESTARTED)


def stale_epoch(message: str) -> CrossdockError:
    return CrossdockError(Code.UNAVAILABLE, message, Reason.STALE_EPOCH)


def not_ready(message: str) -> CrossdockError:
    return CrossdockError(Code.UNAVAILABLE, message, Reason.NOT_READY)


def unreachable(message: str) -> CrossdockError:
    return CrossdockError(Code.UNAVAILABLE, message, Reason.UNREACHABLE)


def layout_mismatch(message: str) -> CrossdockError:
    return CrossdockError(Code.FAILED_PRECONDITION, message, Reason.LAYOUT_MISMATCH)


def deadline_exceeded(message: str) -> CrossdockError:
    return CrossdockError(Code.DEADLINE_EXCEEDED, message, Reason.DEADLINE_EXCEEDED)


def cancelled(message: str) -> CrossdockError:
    return CrossdockError(Code.CANCELLED, message, Reason.CANCELLED)


def internal(message: str) -> CrossdockError:
    return CrossdockError(Code.INTERNAL, message, Reason.INTERNAL)
