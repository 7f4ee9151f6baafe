"""A thousand handoffs under a rain of faults: the tokens are right and nothing is left behind.

Two prefill and two decode instances, a router and a kvstore; every twenty handoffs one of their
processes is killed or stopped, or callers go away. In the end everything drains.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crossdock.cli.fleet import Fleet
from tests.e2e.caller import Caller, router_address
from tests.faults.cells import is_full, serves, until_clean
from tests.faults.load import NUM_RUNNING, Bank, Outcomes, ask_once, options
from tests.faults.processes import (
    Processes,
    num_descriptors,
    resident_bytes,
    shared_memory_files,
)
from tests.faults.summary import SUMMARY

_HANDOFFS_PER_FAULT: Final = 20
_STOP_S: Final = (0.1, 1.5)
# What a front may have more than after its start and first requests: channels to instances that
# came back, arenas of the allocator. A leak of one descriptor a handoff is ten times as much.
_MORE_DESCRIPTORS: Final = 60
_MORE_BYTES: Final = 48 << 20
_STORE_CLEAN_S: Final = 45.0


class Rain:
    """Callers that never rest, and faults that come by the number of handoffs that went well."""

    def __init__(self, fleet: Fleet, bank: Bank, random: Random, num_handoffs: int) -> None:
        self.processes = Processes(fleet)
        self.outcomes = Outcomes()
        self._fleet = fleet
        self._bank = bank
        self._random = random
        self._num_handoffs = num_handoffs
        self._requests: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()
        self._stopping: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        callers = [asyncio.create_task(self._call()) for _ in range(NUM_RUNNING)]
        faults = asyncio.create_task(self._faults())
        await asyncio.gather(*callers)
        await faults
        await asyncio.gather(*self._stopping)

    async def _call(self) -> None:
        """One caller; it connects anew for each request, as the router may be another one."""
        while self.outcomes.num_right < self._num_handoffs:
            async with Caller(router_address(self._fleet)) as caller:
                ask = self._random.choice(self._bank.asks)
                task = asyncio.create_task(ask_once(caller, self._bank, ask, self.outcomes))
                self._requests.add(task)
                before = self.outcomes.num_right
                # One that is cancelled before it began says nothing itself.
                await asyncio.wait({task})
                self._requests.discard(task)
                if task.cancelled():
                    self.outcomes.counts["cancelled"] += 1
                else:
                    task.result()
            self._progress.set()
            if self.outcomes.num_right == before:
                await asyncio.sleep(0.05)  # nobody serves: no hurry

    async def _faults(self) -> None:
        due = _HANDOFFS_PER_FAULT
        while due < self._num_handoffs:
            self._progress.clear()
            await self._progress.wait()
            if self.outcomes.num_right < due:
                continue
            due += _HANDOFFS_PER_FAULT
            kinds: list[Callable[[], Awaitable[None]]] = [self._kill, self._stop, self._cancel]
            await self._random.choice(kinds)()

    async def _kill(self) -> None:
        place = self._random.choice(self.processes.places())
        await self._settle()
        self.outcomes.counts[f"kills of {place.role}"] += 1
        await self.processes.kill(place)
        await self.processes.revive()

    async def _stop(self) -> None:
        await self._settle()
        place = self._random.choice(self.processes.places())
        self.outcomes.counts[f"stops of {place.role}"] += 1
        identity = self.processes.stop(place)
        await asyncio.sleep(self._random.uniform(*_STOP_S))
        self.processes.resume(identity)

    async def _cancel(self) -> None:
        self.outcomes.counts["cancels"] += 1
        for task in self._random.sample(sorted(self._requests, key=id), len(self._requests) // 2):
            task.cancel()

    async def _settle(self) -> None:
        """Every engine is up, and known by its process."""
        deadline_s = time.monotonic() + 60.0
        for instance_id in self.processes.engine_ids():
            while not (await self.processes.status(instance_id, 60.0)).engine_pid:
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
    num_handoffs = 1_000 if is_full() else 60
    wanted = options(fault_model, transport, num_instances=2)
    random = Random(f"{fault_seed} {transport}")
    with Fleet(wanted, tmp_path_factory.mktemp("fleet")) as fleet:
        outcomes = asyncio.run(_endure(fleet, bank, random, num_handoffs))
    left = {name for name in shared_memory_files() - shared_before if _is_ours(name)}
    SUMMARY.add(f"{num_handoffs} handoffs over {transport}", begin_s, outcomes.counts)
    assert not left, f"left in /dev/shm: {left}"


async def _endure(fleet: Fleet, bank: Bank, random: Random, num_handoffs: int) -> Outcomes:
    rain = Rain(fleet, bank, random, num_handoffs)
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


def _is_ours(name: str) -> bool:
    """UCX names its segments; others' processes may make files at the same time."""
    return name.startswith("ucx") and (Path("/dev/shm") / name).stat().st_uid == os.getuid()


def test_a_leak_would_be_seen() -> None:
    """The alarm itself: an open descriptor more than allowed is told."""
    pid = os.getpid()
    count, resident = _holdings(pid)
    with pytest.raises(AssertionError, match="descriptors"):
        _check_holdings("this", (count - _MORE_DESCRIPTORS - 1, resident), pid)
