"""The ids of the requests that run in this instance now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from crossdock.engine.validation import Request
from crossdock.errors import already_live


class LiveRequests:
    """Refuses a request whose ids are in use. Used on one event loop.

    A request may be here twice under different attempts: the former one is just being ended.
    """

    def __init__(self) -> None:
        self._attempts: set[tuple[str, int]] = set()
        self._handoffs: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._attempts)

    @contextmanager
    def claim(self, request: Request) -> Iterator[None]:
        """Holds the ids for as long as the request runs. Raises ALREADY_EXISTS."""
        attempt = (request.request_id, request.attempt)
        if attempt in self._attempts:
            raise already_live("request_id", request.request_id)
        if request.handoff_id and request.handoff_id in self._handoffs:
            raise already_live("handoff_id", request.handoff_id.hex())
        self._attempts.add(attempt)
        if request.handoff_id:
            self._handoffs.add(request.handoff_id)
        try:
            yield
        finally:
            self._attempts.discard(attempt)
            self._handoffs.discard(request.handoff_id)
