"""Which calls run now, and whether new ones are taken: what a graceful drain waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from crossdock.errors import draining


class CallGate:
    """Counts running calls; refuses new ones while draining. Used on one event loop."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._num_running = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def num_running(self) -> int:
        return self._num_running

    def close(self) -> None:
        self._draining = True

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Holds the gate open for one call. Raises DRAINING once the gate is closed."""
        if self._draining:
            raise draining(self._instance_id)
        self._num_running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_running -= 1
            if self._num_running == 0:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Whether the last call ended within the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
