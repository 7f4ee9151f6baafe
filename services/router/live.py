"""The requests that are live: unique ids, a bound on their number, and abort by id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from crossdock.errors import already_live, not_found, overloaded

RETRY_AFTER_S = 1.0


class Abortable(Protocol):
    """A request that can be ended from outside."""

    def abort(self) -> None:
        """Ends it with the reason ABORT; nothing happens when it has ended."""
        ...


class LiveRequests:
    """Used on one event loop."""

    def __init__(self, requests_max: int) -> None:
        assert requests_max >= 1
        self._requests_max = requests_max
        self._live: dict[str, Abortable] = {}

    def __len__(self) -> int:
        return len(self._live)

    @contextmanager
    def admit(self, request_id: str, request: Abortable) -> Iterator[None]:
        """Holds the id while the block runs. ALREADY_EXISTS and RESOURCE_EXHAUSTED come first."""
        if request_id in self._live:
            raise already_live("request_id", request_id)
        if len(self._live) >= self._requests_max:
            raise overloaded(
                f"{self._requests_max} requests are live, as many as this router takes; "
                "retry later",
                RETRY_AFTER_S,
            )
        self._live[request_id] = request
        try:
            yield
        finally:
            del self._live[request_id]

    def abort(self, request_id: str) -> None:
        """NOT_FOUND when no live request has the id."""
        request = self._live.get(request_id)
        if request is None:
            raise not_found(f"request_id: no live request is called {request_id!r}")
        request.abort()
