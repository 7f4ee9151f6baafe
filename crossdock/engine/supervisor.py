"""Keeps one engine running: starts it, watches it, and replaces it when it dies or hangs.

It is replaced, too, when its quarantine stays above its bound: over shared memory the blocks that a
stopped peer may still write are free again only once that peer goes on or dies, which may be never.
The next engine has another slab, under another epoch, and what lands in the old one lands nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from crossdock.engine.client import Engine
from crossdock.engine.lifecycle import ENGINE_TRANSITIONS, EngineEvent, EngineState, Lifecycle
from crossdock.engine.link import Launcher
from crossdock.errors import CrossdockError, engine_restarted

_log = structlog.get_logger("crossdock.engine")


@dataclass(frozen=True)
class SupervisorTimes:
    """All in seconds. The defaults suit production; tests shorten them."""

    start_max_s: float = 600.0  # weights of a large model from a cold disk
    hang_s: float = 30.0  # neither progress nor an answer for so long: dead
    # Longer than a peer is waited for before its pair is closed, which ends most quarantines.
    quarantine_s: float = 20.0
    drain_s: float = 30.0  # what still runs then is tried again elsewhere
    watch_interval_s: float = 5.0
    backoff_min_s: float = 0.1
    backoff_max_s: float = 30.0
    steady_s: float = 60.0  # an engine that served so long restarts without backoff


class EngineSupervisor:
    """Owns the engine of a service. Used on one event loop.

    `on_up` runs when an engine serves; up to its first suspension nobody else has seen the engine.
    `on_down` runs when it serves no more: right after its requests have failed, or as it drains.
    """

    def __init__(
        self,
        launcher: Launcher,
        *,
        on_up: Callable[[Engine], Awaitable[None]],
        on_down: Callable[[], Awaitable[None]],
        times: SupervisorTimes | None = None,
    ) -> None:
        self._launcher = launcher
        self._on_up = on_up
        self._on_down = on_down
        self._times = times or SupervisorTimes()
        self._life = Lifecycle(EngineState.STARTING, ENGINE_TRANSITIONS)
        self._engine: Engine | None = None
        self._task: asyncio.Task[None] | None = None
        self.num_restarts = 0

    @property
    def state(self) -> EngineState:
        return self._life.state

    def current(self) -> Engine:
        """The engine that serves now. Raises ENGINE_RESTARTED while there is none."""
        if self._life.state is not EngineState.SERVING or self._engine is None:
            raise engine_restarted("the engine is restarting; try again")
        if self._engine.down:
            raise engine_restarted("the engine just ended and is restarted; try again")
        return self._engine

    def current_or_none(self) -> Engine | None:
        try:
            return self.current()
        except CrossdockError:
            return None

    async def start(self) -> None:
        """Returns once the first engine serves; raises what prevents it."""
        engine = await self._launch()
        await self._serve(engine)
        self._task = asyncio.create_task(self._run(engine))

    async def stop(self) -> None:
        """Ends the engine for good."""
        self._life.advance(EngineEvent.STOPPED)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._engine is not None:
            await self._engine.shut_down()

    async def _launch(self) -> Engine:
        link, process = await self._launcher.launch()
        engine = Engine(link, process)
        self._engine = engine
        try:
            await engine.wait_ready(self._times.start_max_s)
        except CrossdockError:
            engine.kill()
            await engine.wait_down()
            raise
        return engine

    async def _serve(self, engine: Engine) -> None:
        self._life.advance(EngineEvent.READY)
        await self._on_up(engine)
        _log.info("engine_serving", pid=engine.pid, epoch=f"{engine.epoch:016x}")

    async def _run(self, engine: Engine) -> None:
        backoff_s = self._times.backoff_min_s
        loop = asyncio.get_running_loop()
        while True:
            since = loop.time()
            await self._watch(engine)
            drained = self._life.state is EngineState.DRAINING
            self._life.advance(EngineEvent.EXITED)
            if not drained:
                await self._on_down()
            if loop.time() - since > self._times.steady_s:
                backoff_s = self._times.backoff_min_s
            while True:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._times.backoff_max_s)
                self._life.advance(EngineEvent.STARTED)
                self.num_restarts += 1
                try:
                    engine = await self._launch()
                    await self._serve(engine)
                    break
                except (CrossdockError, OSError) as error:
                    self._life.advance(EngineEvent.EXITED)
                    _log.error("engine_start_failed", error=str(error), next_try_s=backoff_s)

    async def _watch(self, engine: Engine) -> None:
        """Returns once the engine is down; ends one that hangs, or whose slab is worn out."""
        last, silent_s, full_s = engine.progress(), 0.0, 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._times.watch_interval_s):
                    await engine.wait_down()
                    return
            full_s = full_s + self._times.watch_interval_s if engine.quarantine_is_full() else 0.0
            if full_s >= self._times.quarantine_s:
                await self._drain(engine)
                return
            now = engine.progress()
            if engine.answers() or now != last:
                last, silent_s = now, 0.0
                continue
            # Not by the clock: while this process was stopped, nobody could have heard the engine.
            silent_s += self._times.watch_interval_s
            if silent_s >= self._times.hang_s:
                _log.error("engine_hangs", pid=engine.pid, seconds=silent_s)
                engine.kill()
                await engine.wait_down()
                return

    async def _drain(self, engine: Engine) -> None:
        """Lets it finish what it runs, within a bound, and ends it."""
        self._life.advance(EngineEvent.OUTWORN)
        await self._on_down()
        report = engine.last_report
        assert report is not None
        _log.error(
            "quarantine_full",
            pid=engine.pid,
            num_quarantined=report.num_quarantined,
            quarantined_blocks_max=report.quarantined_blocks_max,
            num_sequences=engine.num_sequences,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.drain_s):
                await engine.wait_idle()
        await engine.shut_down()
