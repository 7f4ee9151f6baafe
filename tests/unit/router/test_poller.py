"""Asking instances for their status, and waiting for what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from crossdock.errors import unreachable
from services.router.fleet import Fleet
from services.router.poller import Poller
from services.router.worker import InstanceReport, Role


class Silent:
    """Instances that cannot be reached; `on_report` hears of every question."""

    def __init__(self, on_report: Callable[[], object] = lambda: None) -> None:
        self._on_report = on_report

    async def report(self, role: Role, address: str, timeout_s: float) -> InstanceReport:
        self._on_report()
        raise unreachable(f"no {role} at {address} within {timeout_s}")


def make_poller(workers: Any) -> Poller:
    return Poller(Fleet([], ["d:1"]), workers, lambda: True)


async def test_a_wait_that_is_cancelled_just_as_news_comes_is_cancelled() -> None:
    # Between the news and the step of who waits for them.
    workers = Silent(lambda: asyncio.get_running_loop().call_soon(waiting.cancel))
    poller = make_poller(workers)
    waiting = asyncio.create_task(poller.wait_news(10))
    await asyncio.sleep(0.01)
    await poller.start()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await poller.stop()


async def test_a_wait_without_news_is_bounded() -> None:
    async with asyncio.timeout(10):
        await make_poller(Silent()).wait_news(0.01)
