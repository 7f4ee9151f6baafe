"""Blocks that a stopped peer may still write stay out of use, and go free by proof alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crossdock.cli.fleet import Fleet
from tests.e2e.caller import Caller, router_address
from tests.faults.cells import Cell, CellRun, serves, until_clean
from tests.faults.load import Bank, options
from tests.faults.processes import Processes
from tests.faults.states import PREFILL, STATES
from tests.faults.summary import SUMMARY
from tests.faults.witness import BUSY_MAX_S, Witness, keeps

# The receiver waits two seconds for the sender to say that it has stopped; then it breaks the pair.
_GRACE_S: Final = 2.0
_OBSERVED_S: Final = 2 * _GRACE_S
# The receiver's front looks every five seconds, and an engine starts in one.
_PATIENCE: Final = ("--quarantine-patience", "1")
_REPLACED_MAX_S: Final = 60.0
# For two sequences at most, so that most stopped senders have been granted more than a quarter.
_SMALL_KV_MEMORY: Final = "2MiB"
_TRIES_MAX: Final = 20
_FREED_MAX_S: Final = 1.0
_POLL_S: Final = 0.02


@asynccontextmanager
async def quarantine(
    fleet: Fleet, bank: Bank, random: Random, transport: str
) -> AsyncIterator[Processes]:
    """Handoffs whose callers went away while the sender, stopped, was writing."""
    processes = Processes(fleet)
    try:
        await serves(fleet, bank, random)
        await processes.note_engines()
        state = next(state for state in STATES if state.name == "quarantined")
        cell = Cell(replace(state, transport=transport), "kill", PREFILL)
        async with Caller(router_address(fleet)) as caller:
            run = CellRun(processes, caller, bank, cell, random)
            await run.begin()
            assert await num_quarantined(processes) > 0
            yield processes
            await run.end()
        await until_clean(processes)
        await serves(fleet, bank, random)
    finally:
        await processes.close()


async def num_quarantined(processes: Processes) -> int:
    """Blocks of the receiver."""
    return (await processes.status("decode-0")).num_quarantined_blocks


async def until_freed(processes: Processes) -> tuple[float, float]:
    """Seconds, and those of a witness."""
    begin_s = time.monotonic()
    with Witness() as witness:
        while await num_quarantined(processes):
            assert time.monotonic() - begin_s < _GRACE_S + BUSY_MAX_S, "the quarantine does not end"
            await asyncio.sleep(_POLL_S)
    return time.monotonic() - begin_s, witness.stood_s


async def stays_quarantined(processes: Processes) -> None:
    """For longer than the receiver waits for a word of the sender. Others may still come: of the
    callers that went away at once, each has its own way to the receiver.
    """
    held = await num_quarantined(processes)
    end_s = time.monotonic() + _OBSERVED_S
    while time.monotonic() < end_s:
        now = await num_quarantined(processes)
        assert now >= held
        held = now
        await asyncio.sleep(_POLL_S)


@pytest.mark.timeout(300)
def test_over_shared_memory_only_death_or_its_own_word_ends_it(
    fault_model: Path, bank: Bank, fault_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A stopped process resumes the copy that it was at, however long it stood."""
    random = Random(fault_seed)

    async def run(fleet: Fleet) -> None:
        async with quarantine(fleet, bank, random, "shm") as processes:
            await stays_quarantined(processes)
            processes.resume(processes.identity(PREFILL))
            await until_freed(processes)
        await keeps(_FREED_MAX_S, lambda: after_death(fleet))

    async def after_death(fleet: Fleet) -> tuple[float, float]:
        async with quarantine(fleet, bank, random, "shm") as processes:
            await stays_quarantined(processes)
            await processes.kill(PREFILL)
            freed_s, stood_s = await until_freed(processes)
            SUMMARY.lines.append(f"quarantine over shm: free {freed_s * 1e3:.0f} ms after death")
        return freed_s, stood_s

    with Fleet(options(fault_model, "shm"), tmp_path_factory.mktemp("fleet")) as fleet:
        asyncio.run(run(fleet))


@pytest.mark.timeout(300)
def test_a_quarantine_above_its_bound_that_nothing_ends_costs_the_slab(
    fault_model: Path, bank: Bank, fault_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The receiver goes on with another, and the late writes land where nobody reads."""

    async def run(fleet: Fleet) -> None:
        random = Random(fault_seed)
        replaced = False
        for _ in range(_TRIES_MAX):
            async with quarantine(fleet, bank, random, "shm") as processes:
                replaced = await is_replaced(processes)
                processes.resume(processes.identity(PREFILL))
            if replaced:
                return
        pytest.fail(f"none of {_TRIES_MAX} senders was stopped with more than a quarter")

    small = options(fault_model, "shm")
    arguments = {**small.arguments, "decode": [*small.arguments["decode"], *_PATIENCE]}
    small = replace(small, kv_memory=_SMALL_KV_MEMORY, arguments=arguments)
    with Fleet(small, tmp_path_factory.mktemp("fleet")) as fleet:
        asyncio.run(run(fleet))


async def is_replaced(processes: Processes) -> bool:
    """Whether the receiver has taken another slab; False where it has no reason to."""
    before = await processes.status("decode-0")
    if before.num_quarantined_blocks <= before.num_blocks // 4:
        return False
    begin_s = time.monotonic()
    while (await epoch_of("decode-0", processes)) in (0, before.epoch):
        assert time.monotonic() - begin_s < _REPLACED_MAX_S, "the slab is not replaced"
        await asyncio.sleep(_POLL_S)
    SUMMARY.lines.append(f"slab replaced after {time.monotonic() - begin_s:.0f} s")
    assert await num_quarantined(processes) == 0
    return True


async def epoch_of(instance_id: str, processes: Processes) -> int:
    """0 while it has no engine."""
    return (await processes.status(instance_id)).epoch


@pytest.mark.timeout(300)
def test_over_tcp_the_receiver_closes_the_way_in(
    fault_model: Path, bank: Bank, fault_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing lands through an endpoint that the receiver has closed, so it waits for nobody."""
    random = Random(fault_seed)

    async def run(fleet: Fleet) -> None:
        await keeps(_GRACE_S + _FREED_MAX_S, lambda: while_stopped(fleet))

    async def while_stopped(fleet: Fleet) -> tuple[float, float]:
        async with quarantine(fleet, bank, random, "tcp") as processes:
            freed_s, stood_s = await until_freed(processes)
            SUMMARY.lines.append(f"quarantine over tcp: free after {freed_s:.1f} s, peer stopped")
            processes.resume(processes.identity(PREFILL))
        return freed_s, stood_s

    with Fleet(options(fault_model, "tcp"), tmp_path_factory.mktemp("fleet")) as fleet:
        asyncio.run(run(fleet))
