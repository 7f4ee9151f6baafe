"""The life of a request at the router.

1. ACCEPTED    valid, admitted, tokenised; nothing runs for it yet.
2. DISPATCHED  an attempt is out at a decode instance (and a prefill instance).
3. STREAMING   at least one token is out. A further attempt does not lead back.
4. FINISHED    it ended, exactly once: with a finish reason or with an error.

Any state may be followed by FINISHED; nothing follows it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class RequestState(Enum):
    """Where a request is in its life."""

    ACCEPTED = "accepted"
    DISPATCHED = "dispatched"
    STREAMING = "streaming"
    FINISHED = "finished"


class RequestEvent(Enum):
    """What moves a request on."""

    DISPATCH = "dispatch"
    TOKEN = "token"
    END = "end"


TRANSITIONS: Final[dict[tuple[RequestState, RequestEvent], RequestState]] = {
    (RequestState.ACCEPTED, RequestEvent.DISPATCH): RequestState.DISPATCHED,
    (RequestState.ACCEPTED, RequestEvent.END): RequestState.FINISHED,
    (RequestState.DISPATCHED, RequestEvent.DISPATCH): RequestState.DISPATCHED,
    (RequestState.DISPATCHED, RequestEvent.TOKEN): RequestState.STREAMING,
    (RequestState.DISPATCHED, RequestEvent.END): RequestState.FINISHED,
    (RequestState.STREAMING, RequestEvent.DISPATCH): RequestState.STREAMING,
    (RequestState.STREAMING, RequestEvent.TOKEN): RequestState.STREAMING,
    (RequestState.STREAMING, RequestEvent.END): RequestState.FINISHED,
}


class RequestLife:
    """One request's state and the moments that its timings are made of, in seconds.

    Pure: moments are arguments. An event the table does not know is a bug, and asserts.
    """

    __slots__ = ("_first_token_s", "_last_token_s", "accepted_s", "num_tokens", "state")

    def __init__(self, now_s: float) -> None:
        self.state = RequestState.ACCEPTED
        self.accepted_s = now_s
        self.num_tokens = 0
        self._first_token_s: float | None = None
        self._last_token_s = now_s

    def dispatch(self) -> None:
        """An attempt starts."""
        self._move(RequestEvent.DISPATCH)

    def token(self, now_s: float) -> None:
        """One more token goes out."""
        self._move(RequestEvent.TOKEN)
        self.num_tokens += 1
        self._last_token_s = now_s
        if self._first_token_s is None:
            self._first_token_s = now_s

    def end(self) -> None:
        """The one end."""
        self._move(RequestEvent.END)

    def ttft_ms(self) -> float:
        """From acceptance to the first token; 0 when there was none."""
        if self._first_token_s is None:
            return 0.0
        return (self._first_token_s - self.accepted_s) * 1e3

    def tpot_ms(self) -> float:
        """Mean over the tokens after the first."""
        if self._first_token_s is None or self.num_tokens < 2:
            return 0.0
        return (self._last_token_s - self._first_token_s) * 1e3 / (self.num_tokens - 1)

    def _move(self, event: RequestEvent) -> None:
        following = TRANSITIONS.get((self.state, event))
        assert following is not None, f"{event} in {self.state}"
        self.state = following
