"""The engine is started, watched and replaced."""

from __future__ import annotations

import asyncio

import pytest

from crossdock import _native as native
from crossdock.engine.client import Engine, EngineStartError
from crossdock.engine.lifecycle import EngineState
from crossdock.engine.supervisor import EngineSupervisor, SupervisorTimes
from crossdock.errors import CrossdockError, Reason
from tests.fakes.engine import QUARANTINED_BLOCKS_MAX, FakeEngine, FakeLauncher, event
from tests.fakes.requests import request

TIMES = SupervisorTimes(
    start_max_s=10,
    hang_s=0.05,
    quarantine_s=0.05,
    drain_s=0.2,
    watch_interval_s=0.01,
    backoff_min_s=0.01,
    backoff_max_s=0.02,
)


def _generate(number: int) -> native.Command:
    return native.Generate(task=request().task(number))


class Watched:
    """A supervisor over fakes, and what it told."""

    def __init__(self, launcher: FakeLauncher) -> None:
        self.launcher = launcher
        self.told: list[str] = []
        self.changed = asyncio.Event()
        self.supervisor = EngineSupervisor(
            launcher, on_up=self._up, on_down=self._down, times=TIMES
        )

    async def _up(self, engine: Engine) -> None:
        self.told.append(f"up {engine.epoch}")
        self.changed.set()

    async def _down(self) -> None:
        self.told.append("down")
        self.changed.set()

    async def until(self, told: list[str]) -> None:
        async with asyncio.timeout(10):
            while self.told != told:
                self.changed.clear()
                await self.changed.wait()


async def test_a_dead_engine_is_replaced_under_a_new_epoch() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    assert watched.supervisor.current().epoch == 1
    watched.launcher.last.kill()
    await watched.until(["up 1", "down", "up 2"])
    assert watched.supervisor.current().epoch == 2
    assert watched.supervisor.num_restarts == 1
    await watched.supervisor.stop()


async def test_between_two_engines_requests_are_told_to_retry() -> None:
    launcher = FakeLauncher(lambda number: FakeEngine(number, starts=number == 1))
    watched = Watched(launcher)
    await watched.supervisor.start()
    launcher.last.kill()
    await watched.until(["up 1", "down"])
    with pytest.raises(CrossdockError) as raised:
        watched.supervisor.current()
    assert raised.value.reason == Reason.ENGINE_RESTARTED
    await watched.supervisor.stop()


@pytest.mark.parametrize("in_step", [True, False])
async def test_a_hanging_engine_is_killed_and_replaced(in_step: bool) -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    watched.launcher.last.counter = (17, in_step)
    watched.launcher.last.answers_status = False
    await watched.until(["up 1", "down", "up 2"])
    await watched.supervisor.stop()


async def test_an_engine_that_only_computes_is_left_alone() -> None:
    """It answers between steps, and a step may be long: the counter moves with every layer."""
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    engine = watched.launcher.last
    engine.answers_status = False
    for number in range(100):
        engine.counter = (number, True)
        await asyncio.sleep(4 * TIMES.hang_s / 100)
    assert watched.told == ["up 1"]
    engine.answers_status = True
    await watched.supervisor.stop()


async def test_an_idle_engine_is_left_alone() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    watched.launcher.last.counter = (17, False)
    await asyncio.sleep(4 * TIMES.hang_s)
    assert watched.told == ["up 1"]
    await watched.supervisor.stop()


async def test_the_first_start_that_fails_is_the_callers_to_handle() -> None:
    def make(number: int) -> FakeEngine:
        engine = FakeEngine(number, starts=False)
        engine.emit(event(native.StartFailed, code=9, message="no room in /dev/shm"))
        return engine

    watched = Watched(FakeLauncher(make))
    with pytest.raises(EngineStartError, match="no room in /dev/shm"):
        await watched.supervisor.start()
    await watched.supervisor.stop()
    assert watched.told == []


async def test_a_restart_that_fails_is_tried_again() -> None:
    def make(number: int) -> FakeEngine:
        engine = FakeEngine(number, starts=number != 2)
        if number == 2:
            engine.exit(1)
        return engine

    watched = Watched(FakeLauncher(make))
    await watched.supervisor.start()
    watched.launcher.last.kill()
    await watched.until(["up 1", "down", "up 3"])
    await watched.supervisor.stop()


async def test_stopping_ends_the_engine_and_starts_no_other() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    await watched.supervisor.stop()
    await asyncio.sleep(5 * TIMES.backoff_max_s)
    assert watched.supervisor.state is EngineState.STOPPED
    assert len(watched.launcher.engines) == 1
    assert watched.launcher.last.sent(native.Shutdown)


async def test_an_engine_whose_quarantine_stays_above_its_bound_is_replaced() -> None:
    """The new one has a slab of its own, where nothing of the old one's peers can land."""
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    watched.launcher.last.num_quarantined = QUARANTINED_BLOCKS_MAX + 1
    await watched.until(["up 1", "down", "up 2"])
    await watched.supervisor.stop()


async def test_a_quarantine_within_its_bound_or_above_it_for_a_while_replaces_nothing() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    engine = watched.launcher.last
    for num_quarantined in (QUARANTINED_BLOCKS_MAX, QUARANTINED_BLOCKS_MAX + 1) * 10:
        engine.num_quarantined = num_quarantined
        await asyncio.sleep(TIMES.quarantine_s / 2)
    assert watched.told == ["up 1"]
    await watched.supervisor.stop()


async def test_what_runs_on_it_is_finished_first() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    engine = watched.supervisor.current()
    sequence = engine.open(_generate, local=True)
    watched.launcher.last.num_quarantined = QUARANTINED_BLOCKS_MAX + 1
    await watched.until(["up 1", "down"])
    assert watched.supervisor.state is EngineState.DRAINING
    assert not engine.down
    with pytest.raises(CrossdockError) as raised:
        watched.supervisor.current()
    assert raised.value.reason == Reason.ENGINE_RESTARTED
    engine.close(sequence)
    await watched.until(["up 1", "down", "up 2"])
    await watched.supervisor.stop()


async def test_what_does_not_finish_is_ended_with_it() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    sequence = watched.supervisor.current().open(_generate, local=True)
    watched.launcher.last.num_quarantined = QUARANTINED_BLOCKS_MAX + 1
    await watched.until(["up 1", "down", "up 2"])
    with pytest.raises(CrossdockError) as raised:
        await sequence.take()
    assert raised.value.reason == Reason.ENGINE_RESTARTED
    await watched.supervisor.stop()


async def test_a_service_may_stop_while_its_engine_drains() -> None:
    watched = Watched(FakeLauncher())
    await watched.supervisor.start()
    watched.supervisor.current().open(_generate, local=True)
    watched.launcher.last.num_quarantined = QUARANTINED_BLOCKS_MAX + 1
    await watched.until(["up 1", "down"])
    await watched.supervisor.stop()
    assert watched.supervisor.state is EngineState.STOPPED
    assert watched.supervisor.current_or_none() is None
