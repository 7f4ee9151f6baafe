"""Asks every instance for its status, and tells those who wait for news.

At most one question a second an instance; while all is well and no request is live, fewer, since
an instance that changes then shows it by refusing the next request's epoch, which is a retry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from crossdock.errors import Code, CrossdockError
from services.router.fleet import Fleet
from services.router.worker import Role, Workers

BUSY_INTERVAL_S: Final = 1.0
IDLE_INTERVAL_S: Final = 3.0
REPORT_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger("router.poller")


class Poller:
    """One task an instance. Used on one event loop."""

    def __init__(
        self,
        fleet: Fleet,
        workers: Workers,
        is_busy: Callable[[], bool],
        interval_s: float = BUSY_INTERVAL_S,
    ) -> None:
        self._fleet = fleet
        self._workers = workers
        self._is_busy = is_busy
        self._interval_s = interval_s
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._wake = asyncio.Event()

    async def start(self) -> None:
        """Starts asking; returns once each instance answered or failed to, for the first time."""
        instances = self._fleet.instances()
        await asyncio.gather(*(self._ask(role, address) for role, address in instances))
        self._tasks = [
            asyncio.create_task(self._ask_forever(role, address)) for role, address in instances
        ]

    async def stop(self) -> None:
        """Ends every task."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    async def wait_news(self, timeout_s: float) -> None:
        """See retry.Reports. Also ends a quiet interval: someone wants to know."""
        news = self._news
        self._wake.set()
        await _wait(news, timeout_s)

    async def _ask_forever(self, role: Role, address: str) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if self._fleet.is_settled() and not self._is_busy():
                await self._rest()
            await self._ask(role, address)

    async def _rest(self) -> None:
        """The longer interval of a quiet fleet; ends early when someone waits for news."""
        self._wake.clear()
        await _wait(self._wake, IDLE_INTERVAL_S - BUSY_INTERVAL_S)

    async def _ask(self, role: Role, address: str) -> None:
        try:
            report = await self._workers.report(role, address, REPORT_TIMEOUT_S)
        except CrossdockError as error:
            if error.code is Code.DEADLINE_EXCEEDED:
                self._fleet.record_late(role, address)
            else:
                self._fleet.record_gone(role, address)
            _log.debug("no_report", role=role.value, address=address, error=error.message)
        else:
            if report.role == role.value:
                self._fleet.record_report(role, address, report)
            else:
                self._fleet.record_gone(role, address)
                _log.error("wrong_role", address=address, expected=role.value, actual=report.role)
        self._news.set()
        self._news = asyncio.Event()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    # Not wait_for: before Python 3.12 it may swallow a cancellation.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
