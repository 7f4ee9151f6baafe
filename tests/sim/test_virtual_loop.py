"""Time passes by itself, and processes stop and die as the operating system's do."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.sim.bare_world import BareWorld
from tests.sim.virtual_loop import DeadlockError


def test_sleeping_takes_no_time() -> None:
    world = BareWorld()

    async def main() -> float:
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    started_s = time.monotonic()
    assert world.run(main) == pytest.approx(3_600)
    assert time.monotonic() - started_s < 60


async def _time_out(delay_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            await asyncio.Event().wait()


@pytest.mark.parametrize("wait", [asyncio.sleep, _time_out])
def test_whoever_waits_for_the_rest_of_a_moment_arrives(
    wait: Callable[[float], Awaitable[None]],
) -> None:
    """Less than the clock can tell: the wait ends, and the clock has moved."""
    world = BareWorld()

    async def main() -> int:
        loop = asyncio.get_running_loop()
        until_s = math.nextafter(10.450508836, math.inf)
        num_waits = 0
        while (left_s := until_s - loop.time()) > 0 and num_waits < 10:
            num_waits += 1
            await wait(left_s)
        return num_waits

    assert world.run(main) < 10


def test_a_dead_process_does_nothing_more() -> None:
    world = BareWorld()
    said: list[str] = []

    async def work() -> None:
        try:
            said.append("begins")
            await asyncio.sleep(2)
            said.append("goes on")
        finally:
            said.append("cleans up")

    async def main() -> list[str]:
        process = world.process("victim")
        process.spawn(work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        return list(said)

    assert world.run(main) == ["begins"]


def test_a_stopped_process_goes_on_where_it_was() -> None:
    world = BareWorld()

    async def work() -> list[float]:
        moments = []
        for _ in range(3):
            await asyncio.sleep(1)
            moments.append(asyncio.get_running_loop().time())
        return moments

    async def main() -> list[float]:
        process = world.process("stopped")
        task = process.spawn(work())
        await asyncio.sleep(1.5)
        process.stop()
        await asyncio.sleep(8.5)
        process.resume()
        return await task

    assert world.run(main) == pytest.approx([1, 10, 11])


def test_what_waits_for_ever_is_told() -> None:
    world = BareWorld()
    with pytest.raises(DeadlockError):
        world.run(asyncio.Event().wait)


def test_what_is_never_done_with_a_moment_is_told() -> None:
    world = BareWorld()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="stands still"):
        world.run(main)


def test_threads_are_refused_by_name() -> None:
    world = BareWorld()

    async def main() -> None:
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(RuntimeError, match="has no threads"):
        world.run(main)
