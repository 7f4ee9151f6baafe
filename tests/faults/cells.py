"""One cell of the matrix: a fault that meets a fleet in one state of the handoff, and what must be
true afterwards.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

import grpc

from crossdock.cli.fleet import Fleet
from crossdock.cli.process_identity import ProcessIdentity
from tests.e2e.caller import REQUEST_TIMEOUT_S, Caller, router_address
from tests.faults.load import NUM_RUNNING, Bank, Outcomes, ask_once
from tests.faults.processes import ENGINE_ROLES, Place, Processes, children_of
from tests.faults.states import State, enter

Fault = Literal["kill", "stop", "cancel", "deadline"]

# Bounds that a machine busy with other things keeps as well.
ENDED_MAX_S: Final = 90.0
CLEAN_MAX_S: Final = 45.0
_SERVED_MAX_S: Final = 20.0
_POLL_S: Final = 0.05
# Of the requests that a deadline is to end, in seconds.
_DEADLINE_S: Final = (0.05, 1.0)
# How long what holds a state stays stopped after the fault.
_HELD_S: Final = 0.3
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Cell:
    """`place` is the process that is killed or stopped; cancels and deadlines have none."""

    state: State
    fault: Fault
    place: Place | None

    def __str__(self) -> str:
        at = f" of {self.place}" if self.place is not None else ""
        return f"{self.fault}{at}, {self.state.name} over {self.state.transport}"


async def run_cell(fleet: Fleet, bank: Bank, cell: Cell, random: Random) -> Outcomes:
    """Raises AssertionError for what is not as it must be."""
    processes = Processes(fleet)
    try:
        await processes.note_engines()
        before = {place: processes.identity(place) for place in processes.places()}
        async with Caller(router_address(fleet)) as caller:
            run = CellRun(processes, caller, bank, cell, random)
            await run.begin()
            await run.strike()
            outcomes = await run.end()
        await until_clean(processes)
        _check_processes(processes, before, cell)
        await serves(fleet, bank, random)
        return outcomes
    finally:
        await processes.close()


class CellRun:
    """The requests of a cell: those that a cancel or a deadline concerns, and the others."""

    def __init__(
        self, processes: Processes, caller: Caller, bank: Bank, cell: Cell, random: Random
    ) -> None:
        self._processes = processes
        self._caller = caller
        self._bank = bank
        self._cell = cell
        self._random = random
        self._held: list[ProcessIdentity] = []
        self._concerned: list[asyncio.Task[None]] = []
        self._others: list[asyncio.Task[None]] = []
        self._theirs = Outcomes()
        self._of_others = Outcomes()

    async def begin(self) -> None:
        """Returns once the requests run and the state is reached."""
        state = self._cell.state
        if state.before is not None:
            self._held.append(self._processes.stop(state.before))
        self._refill()
        if state.name == "ended":
            await asyncio.wait(self._concerned + self._others, timeout=ENDED_MAX_S)
        await enter(self._processes, state, refill=self._refill, cancel_all=self._cancel)
        if state.cancel:
            self._fill(self._others, self._of_others)
        if state.stop is not None:
            self._held.append(self._processes.identity(state.stop))

    async def strike(self) -> None:
        """The fault; then what held the state goes on, and what was killed is started again."""
        fault, place = self._cell.fault, self._cell.place
        if fault == "cancel":
            self._cancel()
            await asyncio.sleep(_HELD_S)
        elif fault == "deadline":
            await asyncio.wait(self._concerned, timeout=ENDED_MAX_S)
        elif place is not None and fault == "kill":
            await self._processes.kill(place)
            await asyncio.sleep(_HELD_S)
        elif place is not None:
            identity = self._processes.stop(place)
            await asyncio.sleep(_STOP_S)
            self._processes.resume(identity)
        for identity in self._held:
            self._processes.resume(identity)
        await self._processes.revive()

    async def end(self) -> Outcomes:
        """Every request has ended, and each as it may."""
        tasks = self._concerned + self._others
        _, late = await asyncio.wait(tasks, timeout=ENDED_MAX_S)
        assert not late, f"{len(late)} requests do not end"
        for task in tasks:
            task.result()
        fault, place, state = self._cell.fault, self._cell.place, self._cell.state
        may_end = ["cancelled"] if state.cancel or fault == "cancel" else []
        if fault == "deadline":
            may_end.append("DEADLINE_EXCEEDED")
        wrong = self._of_others.unexpected() + self._theirs.unexpected(may_end)
        spares_others = place is None or place.role == "kvstore"
        if spares_others and self._of_others.num_right != len(self._others):
            wrong.append(f"bystanders: {self._of_others.counts}")
        assert not wrong, wrong
        outcomes = Outcomes()
        outcomes.add(self._theirs)
        outcomes.add(self._of_others)
        return outcomes

    def _refill(self) -> None:
        self._fill(self._concerned, self._theirs)
        # Where all that is held is to be cancelled, the others come later.
        if not self._cell.state.cancel:
            self._fill(self._others, self._of_others)

    def _fill(self, tasks: list[asyncio.Task[None]], outcomes: Outcomes) -> None:
        num_running = sum(not task.done() for task in tasks)
        for _ in range(num_running, NUM_RUNNING // 2):
            self._ask(tasks, outcomes)

    def _ask(self, tasks: list[asyncio.Task[None]], outcomes: Outcomes) -> None:
        short = self._cell.fault == "deadline" and tasks is self._concerned
        timeout_s = self._random.uniform(*_DEADLINE_S) if short else REQUEST_TIMEOUT_S
        ask = self._random.choice(self._bank.asks)
        once = ask_once(self._caller, self._bank, ask, outcomes, timeout_s)
        tasks.append(asyncio.create_task(once))

    def _cancel(self) -> None:
        for task in self._concerned:
            task.cancel()


async def until_clean(processes: Processes, timeout_s: float = CLEAN_MAX_S) -> None:
    """Returns once no engine holds anything: every block is free or cached, no handoff lives."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = await leftovers(processes)
        if not found:
            return
        assert time.monotonic() < deadline_s, f"still held after {timeout_s:g} s: {found}"
        await asyncio.sleep(_POLL_S)


async def leftovers(processes: Processes) -> list[str]:
    found = []
    for instance_id in processes.engine_ids():
        try:
            status = await processes.status(instance_id)
        except grpc.aio.AioRpcError as error:
            found.append(f"{instance_id}: {error.code().name} {error.details()}")
            continue
        accounts = {
            "not ready": not status.ready,
            "owned blocks": status.num_owned_blocks,
            "quarantined blocks": status.num_quarantined_blocks,
            "running": status.num_running,
            "waiting": status.num_waiting,
            "sequences of the front": status.num_reserved_sequences,
            "blocks that are gone": status.num_blocks
            - status.num_free_blocks
            - status.num_cached_blocks,
            **{c.name: c.value for c in status.counters if c.name.startswith("handoffs_")},
        }
        unreferenced = next(
            (c.value for c in status.counters if c.name == "cached_unreferenced_blocks"), 0
        )
        accounts["pinned blocks"] = status.num_cached_blocks - unreferenced
        found += [f"{instance_id}: {what} {n}" for what, n in accounts.items() if n]
    return found


def _check_processes(
    processes: Processes, before: dict[Place, ProcessIdentity], cell: Cell
) -> None:
    """Whoever was not killed is still there, whoever was is another one; nobody is left over."""
    for place, former in before.items():
        hit = cell.fault == "kill" and cell.place in (place, Place(place.instance_id))
        same = processes.identity(place) == former
        assert not (hit and former.is_alive()), f"{place} outlives {cell}"
        assert same != hit, f"{place} is {'the same' if same else 'another'} process after {cell}"
    for record in processes.records:
        expected = []
        if record.role in ENGINE_ROLES:
            expected = [processes.identity(Place(record.instance_id, "engine")).pid]
        assert children_of(record.process.pid) == expected, f"children of {record.instance_id}"


async def serves(fleet: Fleet, bank: Bank, random: Random) -> None:
    """A new request is served, once the router has met those again who were away."""
    deadline_s = time.monotonic() + _SERVED_MAX_S
    async with Caller(router_address(fleet)) as caller:
        while True:
            outcomes = Outcomes()
            await ask_once(caller, bank, random.choice(bank.asks), outcomes)
            assert not outcomes.wrong, outcomes.wrong
            if outcomes.num_right == 1:
                return
            assert time.monotonic() < deadline_s, outcomes.refused
            await asyncio.sleep(_POLL_S)
