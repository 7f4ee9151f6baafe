"""One seed from start to end: the fleet starts, callers ask, faults happen and stop, all drains."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Final

import grpc
import structlog

from crossdock.errors import CrossdockError
from tests.sim import checkers
from tests.sim.callers import Caller, Outcome
from tests.sim.checkers import Breach
from tests.sim.engines import Engines, Path
from tests.sim.faults import Faults
from tests.sim.fleet import Fleet
from tests.sim.native import crossdock_sim
from tests.sim.network import Network
from tests.sim.scenario import Ask, Scenario
from tests.sim.services import Ground, Service
from tests.sim.virtual_loop import DeadlockError, VirtualLoop, process_or_none

# Bounds in virtual seconds. A fault lasts 40 s at most; an engine that hangs is found in 35 s.
_START_MAX_S: Final = 60.0
_FAULTS_MAX_S: Final = 45.0
_END_MAX_S: Final = 150.0
_RECOVER_MAX_S: Final = 120.0
_DRAIN_MAX_S: Final = 60.0
_NUM_PROBES: Final = 3
# What the services log of a bug of their own.
_BUG_EVENTS: Final = frozenset({"call_failed", "request_failed", "store_event_without_store"})


@dataclass
class Result:
    """What a seed came to."""

    seed: int
    breaches: list[Breach] = field(default_factory=list)
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


class Simulation:
    """Runs once."""

    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self._scenario = scenario
        self._random = Random(f"world {scenario.seed}")
        self._result = Result(scenario.seed)
        self._lines: list[str] | None = [] if trace else None
        self._hash = hashlib.blake2b(digest_size=16)
        self._endings: Counter[tuple[str, str]] = Counter()
        self._world = crossdock_sim.World(scenario.seed, trace=trace)
        engines = Engines(self._world, Random(f"engines {scenario.seed}"))
        self._loop = VirtualLoop(self._world, engines.collect_ended)
        engines.loop = self._loop
        network = Network(self._loop, Random(f"network {scenario.seed}"))
        network.conditions.delay_max_s = scenario.delay_max_s
        self._ground = Ground(self._loop, network, engines, self._random, self.note)
        self._fleet: Fleet
        self._callers: list[Caller] = []

    def run(self) -> Result:
        self._build()
        self._loop.set_exception_handler(self._on_loop_error)
        gc.disable()  # what is collected by chance would clean up by chance
        try:
            with _logs_to(self._on_log):
                try:
                    self._loop.run_until_complete(self._main())
                except DeadlockError as error:
                    self._breach("everything_drains_after_faults_stop", str(error))
                self._conclude()
        finally:
            with _logs_to(lambda *_: None):  # of those who clean up after their world has ended
                self._tear_down()
            gc.enable()
        return self._result

    def note(self, text: str) -> None:
        """A line of the trace, and part of the digest."""
        line = f"{self._loop.time():12.6f} {text}"
        self._hash.update(line.encode())
        if self._lines is not None:
            self._lines.append(line)

    # ---- the course of events --------------------------------------------------------------------

    def _build(self) -> None:
        scenario = self._scenario
        self._ground.engines.set_network(
            Path(2_000, int(scenario.delay_max_s * 1e9), scenario.bytes_per_s),
            lost_completions=scenario.lost_completions,
            write_chunk_bytes=scenario.write_chunk_bytes,
        )
        if scenario.sabotage:
            self._world.sabotage(scenario.sabotage)
        self._fleet = Fleet(self._ground, scenario)

    async def _main(self) -> None:
        for service in self._fleet.services.values():
            service.start()
        if not await self._until(self._settled, _START_MAX_S):
            self._breach("everything_drains_after_faults_stop", "the fleet does not start")
            return
        self._callers = [self._call(ask) for ask in self._scenario.asks]
        faults = Faults(
            self._ground,
            Random(f"faults {self._scenario.seed}"),
            self._fleet.services,
            self._callers,
            self.note,
        )
        faults.schedule(self._scenario.faults, self._loop.time())
        await asyncio.sleep(max((fault.at_s for fault in self._scenario.faults), default=0.0))
        await self._until(self._answered, _FAULTS_MAX_S)
        faults.undo_all()
        self._result.counts.update({f"fault {kind}": n for kind, n in faults.counts.items()})
        await self._until(self._answered, _END_MAX_S)
        if not await self._until(self._settled, _RECOVER_MAX_S):
            text = f"the fleet does not recover: {self._fleet.unsettled()}"
            self._breach("everything_drains_after_faults_stop", text)
            return
        # An instance whose quarantine is full refuses, rightly, until it has drained.
        await self._until(lambda: not self._drain_breaches(), _DRAIN_MAX_S)
        await self._probe()
        await self._until(lambda: not self._drain_breaches(), _DRAIN_MAX_S)
        self._result.breaches += self._drain_breaches()
        await self._shut_down()

    def _call(self, ask: Ask) -> Caller:
        address = self._fleet.routers[ask.tenant].address
        return Caller(self._loop, self._ground.network, ask, address)

    async def _probe(self) -> None:
        """A fleet that is well answers everybody, and rightly."""
        for router in range(self._scenario.num_tenants):
            for index in range(_NUM_PROBES):
                outcome = await self._ask_now(router, index)
                if outcome.code is not grpc.StatusCode.OK:
                    self._breach("everything_drains_after_faults_stop", outcome.line())

    async def _ask_now(self, router: int, index: int) -> Outcome:
        caller = self._call(
            replace(
                self._scenario.asks[index % len(self._scenario.asks)],
                request_id=f"probe{router}-{index}",
                at_s=0.0,
                tenant=router,
                timeout_s=None,
                cancel_after_s=None,
                abort_after_s=None,
                read_pause_s=0.0,
            )
        )
        self._callers.append(caller)
        await self._until(self._answered, _END_MAX_S)
        return caller.outcome

    async def _shut_down(self) -> None:
        """SIGTERM to all, callers before callees; every process ends, engines with code 0."""
        engines = {engine.engine_id for engine in self._ground.engines.running()}
        for group in self._fleet.groups:
            for service in group:
                service.terminate()
            await self._until(partial(_all_ended, group), _DRAIN_MAX_S)
            if left := [service.name for service in group if service.alive]:
                self._breach("everything_drains_after_faults_stop", f"{left} do not end")
        for engine_id in sorted(engines):
            code = self._ground.engines.all[engine_id].exit_code
            if code != 0:
                text = f"engine {engine_id} ended with {code}"
                self._breach("everything_drains_after_faults_stop", text)

    async def _until(self, condition: Callable[[], bool], bound_s: float) -> bool:
        end_s = self._loop.time() + bound_s
        while not condition():
            if self._loop.time() >= end_s:
                return False
            await asyncio.sleep(0.05)
        return True

    def _answered(self) -> bool:
        return all(caller.outcome.over for caller in self._callers)

    def _settled(self) -> bool:
        return not self._fleet.unsettled()

    def _drain_breaches(self) -> list[Breach]:
        inspections = {
            f"engine {engine.engine_id} of {engine.front.name}": self._world.inspect(
                engine.engine_id
            )
            for engine in self._ground.engines.running()
        }
        return checkers.everything_drains_after_faults_stop(
            inspections, self._fleet.held(), self._fleet.stores()
        )

    # ---- what is watched -------------------------------------------------------------------------

    def _conclude(self) -> None:
        result = self._result
        self._world.check()
        found = self._world.violations()
        for checker in (
            checkers.no_block_reused_while_an_operation_may_touch_it,
            checkers.commit_after_every_byte,
            checkers.blocks_conserved,
            checkers.no_assertion_fails,
        ):
            result.breaches += checker(found)
        outcomes = [caller.outcome for caller in self._callers]
        result.breaches += checkers.every_accepted_request_ends_exactly_once(
            outcomes, self._endings
        )
        result.breaches += checkers.errors_are_honest(outcomes)
        result.breaches += checkers.tokens_equal_the_oracle(outcomes, oracle)
        for watch in self._fleet.watches:
            result.breaches += watch.breaches
        self._count(outcomes)
        for outcome in outcomes:
            self.note(outcome.line())
        for breach in result.breaches:
            self.note(f"BREACH {breach}")
        self.note(f"{self._loop.num_callbacks} callbacks, native {self._world.digest()}")
        result.digest = self._hash.hexdigest()
        if self._lines is not None:
            result.trace = _merged(self._lines, self._world.trace())

    def _count(self, outcomes: list[Outcome]) -> None:
        counts = self._result.counts
        counts["requests"] += len(outcomes)
        counts["virtual s"] += int(self._loop.time())
        counts["callbacks"] += self._loop.num_callbacks
        for outcome in outcomes:
            name = outcome.code.name if outcome.code is not None else "gone"
            counts[f"answer {name}"] += 1
            counts["tokens"] += len(outcome.tokens)
            counts["attempts"] += outcome.num_attempts
        for engine in self._ground.engines.all:
            inside = self._world.inspect(engine)
            for name, count in inside.counters.items():
                counts[f"table {name}"] += count
            counts["store blocks read"] += inside.num_store_blocks_read
            counts["store blocks written"] += inside.num_store_blocks_written
            counts["store blocks bad"] += inside.num_store_blocks_bad
        for statistics in self._fleet.stores().values():
            for name in ("hit", "published", "evicted", "dropped", "abandoned"):
                counts[f"store blocks {name}"] += getattr(statistics, f"{name}_blocks")
            counts["store leases expired"] += statistics.expired_leases
            counts["store blocks refused"] += statistics.refused_reservations
        for name, count in self._world.statistics().items():
            counts[f"world {name}"] += count
        network = self._ground.network.counts
        counts["rpc messages"] += network.messages
        counts["rpc keepalive timeouts"] += network.keepalive_timeouts

    def _breach(self, rule: str, text: str) -> None:
        self._result.breaches.append(Breach(rule, text))

    def _on_log(self, event: MutableMapping[str, Any], level: str) -> None:
        process = process_or_none()
        name = process.name if process is not None else "-"
        what = str(event.pop("event"))
        if what == "request_ended":
            self._endings[name, str(event["request_id"])] += 1
        if what in _BUG_EVENTS:
            self._breach("no_assertion_fails", f"{name}: {what} {_with_cause(event)}")
        self.note(f"{name} {level} {what} {event}")

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        error = context.get("exception")
        if isinstance(error, CrossdockError | grpc.RpcError) and "never retrieved" in str(
            context.get("message")
        ):
            return
        self._breach("no_assertion_fails", f"{context.get('message')}: {error!r}")

    def _tear_down(self) -> None:
        for process in self._loop.processes:
            process.kill()
        self._loop.close()
        shown, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            for process in self._loop.processes:
                process.bury()
            self._callers.clear()
            del self._fleet
            gc.collect()
        finally:
            sys.unraisablehook = shown


def oracle(outcome: Outcome) -> list[int]:
    ask = outcome.ask
    return crossdock_sim.oracle(
        list(ask.prompt),
        ask.max_tokens,
        temperature=ask.temperature,
        top_k=ask.top_k,
        top_p=ask.top_p,
        seed=ask.seed,
        min_tokens=ask.min_tokens,
        ignore_eos=ask.ignore_eos,
        stop_token_ids=list(ask.stop_token_ids),
    )


def _all_ended(services: Sequence[Service]) -> bool:
    return not any(service.alive for service in services)


def _with_cause(event: MutableMapping[str, Any]) -> str:
    error = event.get("exc_info")
    return repr(error) if isinstance(error, BaseException) else str(dict(event))


def _merged(python: list[str], native: list[str]) -> list[str]:
    """Both traces; each line begins with its time."""
    return python + native


@contextmanager
def _logs_to(sink: Callable[[MutableMapping[str, Any], str], None]) -> Iterator[None]:
    def deliver(_: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        sink(event, level)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[deliver], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
