"""A thousand handoffs under a rain of faults: the tokens are right and nothing is left behind.

Two prefill and two decode instances, a router and a kvstore; every twenty handoffs one of their
processes is killed or stopped, or callers go away. In the end everything drains.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crossdock.cli.fleet import Fleet
from tests.e2e.caller import Caller, router_address
from tests.faults.cells import serves, until_clean
from tests.faults.load import NUM_RUNNING, Bank, Outcomes, ask_once, options
from tests.faults.processes import (
    ENGINE_ROLES,
    Place,
    Processes,
    num_descriptors,
    resident_bytes,
    shared_memory_files,
)
from tests.faults.summary import SUMMARY

_NUM_HANDOFFS: Final = 1_000
_HANDOFFS_PER_FAULT: Final = 20
_STOP_S: Final = (0.1, 1.5)
# What a front may have more than after its start and first requests: channels to instances that
# came back, arenas of the allocator. A leak of one descriptor a handoff is ten times as much.
_MORE_DESCRIPTORS: Final = 60
_MORE_BYTES: Final = 48 << 20
_STORE_CLEAN_S: Final = 45.0
_BACK_MAX_S: Final = 60.0
# How long a caller waits where nobody serves.
_REFUSED_S: Final = 0.1


class Rain:
    """Callers that never rest, and a fault every so many handoffs, whatever the former ones still
    do: several processes may be away at once.
    """

    def __init__(self, fleet: Fleet, bank: Bank, random: Random) -> None:
        self.processes = Processes(fleet)
        self.outcomes = Outcomes()
        self._fleet = fleet
        self._bank = bank
        self._random = random
        self._num_due = _HANDOFFS_PER_FAULT
        self._requests: list[asyncio.Task[None]] = []
        self._struck: set[str] = set()  # instances under a fault

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_RUNNING):
                group.create_task(self._call(group))

    async def _call(self, group: asyncio.TaskGroup) -> None:
        """One caller; it connects anew for each request, as the router may be another one."""
        while self.outcomes.num_right < _NUM_HANDOFFS:
            num_before = self.outcomes.num_right
            async with Caller(router_address(self._fleet)) as caller:
                ask = self._random.choice(self._bank.asks)
                task = asyncio.create_task(ask_once(caller, self._bank, ask, self.outcomes))
                self._requests.append(task)
                await asyncio.wait({task})
                self._requests.remove(task)
            if task.cancelled():  # before it began, so that it could not say so itself
                self.outcomes.counts["cancelled"] += 1
            else:
                task.result()
            if self.outcomes.num_right >= self._num_due:
                self._num_due += _HANDOFFS_PER_FAULT
                group.create_task(self._random.choice([self._kill, self._stop, self._cancel])())
            elif self.outcomes.num_right == num_before:
                await asyncio.sleep(_REFUSED_S)

    def _strike(self, what: str) -> Place | None:
        """A process of an instance that is well; none where all are under a fault."""
        well = [p for p in self.processes.places() if p.instance_id not in self._struck]
        if not well:
            return None
        place = self._random.choice(well)
        self._struck.add(place.instance_id)
        self.outcomes.counts[f"{what} of {place.role}"] += 1
        return place

    async def _kill(self) -> None:
        place = self._strike("kills")
        if place is None:
            return
        await self.processes.kill(place)
        await self.processes.revive()
        if place.role in ENGINE_ROLES:
            await self._engine_is_back(place.instance_id)
        self._struck.discard(place.instance_id)

    async def _stop(self) -> None:
        place = self._strike("stops")
        if place is None:
            return
        identity = self.processes.stop(place)
        await asyncio.sleep(self._random.uniform(*_STOP_S))
        self.processes.resume(identity)
        self._struck.discard(place.instance_id)

    async def _cancel(self) -> None:
        self.outcomes.counts["cancels"] += 1
        for task in self._random.sample(self._requests, len(self._requests) // 2):
            task.cancel()

    async def _engine_is_back(self, instance_id: str) -> None:
        former = self.processes.identity(Place(instance_id, "engine"))
        deadline_s = time.monotonic() + _BACK_MAX_S
        while True:
            status = await self.processes.status(instance_id, _BACK_MAX_S)
            if status.ready and self.processes.identity(Place(instance_id, "engine")) != former:
                return
            assert time.monotonic() < deadline_s, f"the engine of {instance_id} stays away"
            await asyncio.sleep(0.02)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_handoffs_go_on_under_faults(
    transport: str,
    fault_model: Path,
    bank: Bank,
    fault_seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    begin_s = time.monotonic()
    shared_before = shared_memory_files()
    wanted = options(fault_model, transport, num_instances=2)
    random = Random(f"{fault_seed} {transport}")
    with Fleet(wanted, tmp_path_factory.mktemp("fleet")) as fleet:
        outcomes = asyncio.run(_endure(fleet, bank, random))
        broken = _broken_engines(fleet.directory)
    left = _left_in_shared_memory(shared_before)
    SUMMARY.add(f"{_NUM_HANDOFFS:,} handoffs over {transport}", begin_s, outcomes.counts)
    assert not left, f"left in /dev/shm: {left}"
    assert not broken, f"engines that ended by themselves: {broken}"


async def _endure(fleet: Fleet, bank: Bank, random: Random) -> Outcomes:
    rain = Rain(fleet, bank, random)
    processes = rain.processes
    try:
        await serves(fleet, bank, random)
        await processes.note_engines()
        before = {record.process: _holdings(record.process.pid) for record in processes.records}
        await rain.run()
        await until_clean(processes)
        await _until_store_clean(processes)
        for record in processes.records:
            if record.process in before:
                _check_holdings(record.instance_id, before[record.process], record.process.pid)
        allowed = [how for how in rain.outcomes.counts if how.split()[0] in _OURS]
        wrong = rain.outcomes.unexpected(allowed)
        assert not wrong, wrong
        await serves(fleet, bank, random)
    finally:
        await processes.close()
    return rain.outcomes


# What the rain itself counts among the outcomes.
_OURS: Final = ("kills", "stops", "cancels", "cancelled")


def _holdings(pid: int) -> tuple[int, int]:
    return num_descriptors(pid), resident_bytes(pid)


def _check_holdings(name: str, before: tuple[int, int], pid: int) -> None:
    descriptors, resident = _holdings(pid)
    assert descriptors <= before[0] + _MORE_DESCRIPTORS, (
        f"{name} has {descriptors} descriptors, had {before[0]}"
    )
    assert resident <= before[1] + _MORE_BYTES, f"{name} has {resident} bytes, had {before[1]}"


async def _until_store_clean(processes: Processes) -> None:
    """No lease and no block in quarantine; what a dead reader left runs out by its time."""
    deadline_s = time.monotonic() + _STORE_CLEAN_S
    while True:
        status = await processes.status("kvstore")
        # A store that no engine has met since its start has none to tell of.
        leases = sum(c.value for c in status.counters if c.name == "leases")
        if leases == 0 and status.num_quarantined_blocks == 0:
            return
        assert time.monotonic() < deadline_s, f"kvstore: {status}"
        await asyncio.sleep(0.2)


def _left_in_shared_memory(before: set[str]) -> set[str]:
    """What came and stays. Engines of other fleets have something there while they start."""
    left = {n for n in shared_memory_files() - before if n.startswith(("ucx", "crossdock-"))}
    deadline_s = time.monotonic() + _BACK_MAX_S
    while left and time.monotonic() < deadline_s:
        time.sleep(0.1)
        left &= shared_memory_files()
    return left


def _broken_engines(directory: Path) -> list[str]:
    """What fronts logged of engines that ended otherwise than by a kill or with their front: the
    fleet goes on after a failed assertion as after a kill, so that nothing else would show it.
    """
    logs = [log.read_text(encoding="utf-8", errors="replace") for log in directory.rglob("*.log")]
    ends = [line for log in logs for line in log.splitlines() if '"engine_ended"' in line]
    return [line for line in ends if json.loads(line)["exit_code"] not in (0, -signal.SIGKILL)]


def test_an_engine_that_fails_an_assertion_would_be_seen(tmp_path: Path) -> None:
    """The alarm itself."""
    for number in (-signal.SIGKILL, 0, -signal.SIGABRT):
        end = {"event": "engine_ended", "exit_code": int(number)}
        log = tmp_path / f"again{number}" / "decode-0.log"
        log.parent.mkdir()
        log.write_text(f"not json\n{json.dumps(end)}\n", encoding="utf-8")
    assert [json.loads(line)["exit_code"] for line in _broken_engines(tmp_path)] == [-6]


def test_a_leak_would_be_seen() -> None:
    """The alarm itself: an open descriptor more than allowed is told."""
    pid = os.getpid()
    count, resident = _holdings(pid)
    with pytest.raises(AssertionError, match="descriptors"):
        _check_holdings("this", (count - _MORE_DESCRIPTORS - 1, resident), pid)
