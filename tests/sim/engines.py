"""Engines of the simulated world behind the real front's link, and the memory of kvstores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING

from crossdock import _native as native
from crossdock.engine.link import Link, Process
from crossdock.engine.process import EngineConfig
from tests.sim.virtual_loop import Process as SimProcess
from tests.sim.virtual_loop import VirtualLoop, current_process

if TYPE_CHECKING:
    from tests.sim.crossdock_sim import EngineId, Segment, World

_RING_BYTES = 1 << 18
# From the end of a process to the moment its parent or child knows.
_NOTICE_MAX_S = 0.002


@dataclass(frozen=True)
class Pace:
    """How long an engine takes: to start, and for a step."""

    start_max_s: float = 1.0
    token_ns: int = 20_000
    step_ns: int = 200_000


@dataclass(frozen=True)
class Path:
    """How long what one engine sends another, or a kvstore, is under way."""

    delay_min_ns: int
    delay_max_ns: int
    bytes_per_s: int


class Member:
    """Who has a segment in the world: an engine, or the process of a kvstore."""

    def __init__(self, fleet: Engines, engine_id: EngineId, front: SimProcess) -> None:
        self.engine_id = engine_id
        self.front = front
        self._fleet = fleet

    @property
    def running(self) -> bool:
        return self.front.alive

    def kill(self) -> None:
        self._fleet.world.kill(self.engine_id)

    def stop(self) -> None:
        self._fleet.world.stop(self.engine_id)

    def resume(self) -> None:
        self._fleet.world.resume(self.engine_id)


class Engine(Member):
    """An engine process of the world. Implements crossdock.engine.link.Process."""

    def __init__(self, fleet: Engines, engine_id: EngineId, front: SimProcess) -> None:
        super().__init__(fleet, engine_id, front)
        self.pid = 100_000 + engine_id
        self.last_words = ""
        self.stopped = False
        self.exit_code: int | None = None
        self._orphaned = False
        self._ended = asyncio.Event()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    async def wait(self) -> int:
        while self.exit_code is None:
            await self._ended.wait()
        return self.exit_code

    def stop(self) -> None:
        if self.running:
            self.stopped = True
            super().stop()

    def resume(self) -> None:
        if not self.stopped or not self.running:
            return
        self.stopped = False
        super().resume()
        if self._orphaned:
            self.front_died()

    def front_died(self) -> None:
        """Its pidfd tells the engine; one that is stopped looks at it when it goes on."""
        self._orphaned = True
        if not self.stopped:
            self._fleet.later(self.kill)

    def has_ended(self, code: int) -> None:
        self.exit_code = code
        at_s = self._fleet.loop.time() + self._fleet.random.uniform(0, _NOTICE_MAX_S)
        if self.front.alive:
            self.front.call_at(at_s, self._ended.set)


class Engines:
    """All engines and kvstores of the world, those that ended included."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.loop: VirtualLoop
        self.all: dict[EngineId, Engine] = {}
        self._members: list[Member] = []
        # A link must outlive its engine, whose front may be gone.
        self._links: list[Link] = []
        self._cut: set[frozenset[str]] = set()
        self._usual: Path

    def set_network(self, usual: Path, *, lost_completions: float, write_chunk_bytes: int) -> None:
        self._usual = usual
        self.world.set_network(
            **asdict(usual), lost_completions=lost_completions, write_chunk_bytes=write_chunk_bytes
        )

    def set_path(self, source: Member, target: Member, path: Path | None) -> None:
        """In one direction; None is as it usually is."""
        self.world.set_path(source.engine_id, target.engine_id, **asdict(path or self._usual))

    def add(self, config: EngineConfig, pace: Pace) -> tuple[Link, Engine]:
        front = current_process()
        link = native.EngineLink(_RING_BYTES)
        engine_id = self.world.add_engine(
            config_json=config.to_json(),
            memory_fd=link.memory_fd,
            to_engine_fd=link.to_engine_fd,
            to_front_fd=link.to_front_fd,
            host=front.host,
            token_ns=pace.token_ns,
            step_ns=pace.step_ns,
        )
        self._links.append(link)
        engine = Engine(self, engine_id, front)
        self._enter(engine)
        self.all[engine_id] = engine
        front.on_death.append(engine.front_died)
        return link, engine

    def add_store(self, epoch: int, transport: str, memory_bytes: int) -> tuple[Segment, Member]:
        front = current_process()
        segment = self.world.add_store(
            host=front.host, transport=transport, epoch=epoch, segment_bytes=memory_bytes
        )
        store = Member(self, segment.process_id, front)
        self._enter(store)
        front.on_death.append(store.kill)
        return segment, store

    def _enter(self, member: Member) -> None:
        for other in self.members():
            if frozenset((other.front.host, member.front.host)) in self._cut:
                self.world.partition(member.engine_id, other.engine_id)
        self._members.append(member)

    def of(self, front: SimProcess) -> Member | None:
        """The one that runs now."""
        return next((member for member in self.members() if member.front is front), None)

    def members(self) -> list[Member]:
        """Those that run."""
        return [member for member in self._members if member.running]

    def running(self) -> list[Engine]:
        return [engine for engine in self.all.values() if engine.running]

    def partition(self, a: str, b: str) -> None:
        """Between hosts: the engines there now, and those to come."""
        self._cut.add(frozenset((a, b)))
        for left, right in self._between(a, b):
            self.world.partition(left.engine_id, right.engine_id)

    def heal(self, a: str, b: str) -> None:
        self._cut.discard(frozenset((a, b)))
        for left, right in self._between(a, b):
            self.world.heal(left.engine_id, right.engine_id)

    def _between(self, a: str, b: str) -> list[tuple[Member, Member]]:
        running = self.members()
        return [
            (left, right)
            for left in running
            for right in running
            if (left.front.host, right.front.host) == (a, b)
        ]

    def collect_ended(self) -> None:
        for engine_id in self.world.ended():
            code = self.world.inspect(engine_id).exit_code
            self.all[engine_id].has_ended(-9 if code is None else code)

    def later(self, action: Callable[[], None]) -> None:
        self.loop.outside(self.random.uniform(0, _NOTICE_MAX_S), action)


class SimLauncher:
    """Starts engines for one front. Implements crossdock.engine.link.Launcher."""

    def __init__(self, engines: Engines, config: EngineConfig, pace: Pace) -> None:
        self._engines = engines
        self._config = config
        self._pace = pace

    async def launch(self) -> tuple[Link, Process]:
        await asyncio.sleep(self._engines.random.uniform(0.01, self._pace.start_max_s))
        return self._engines.add(self._config, self._pace)
