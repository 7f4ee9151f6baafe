"""kill -9, SIGSTOP, cancel and deadline, in each state of a handoff, of each process.

Sixteen requests run when the fault comes. Afterwards every one of them has ended exactly once,
with the right tokens or a proper status; those that the fault did not concern with the right ones;
nothing is held; the processes are the expected ones; a new request is served.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final

import pytest

from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from tests.faults.cells import Cell, run_cell, serves
from tests.faults.load import Bank, Outcomes, options
from tests.faults.processes import Place
from tests.faults.states import STATES
from tests.faults.summary import SUMMARY

# Fleets side by side: most of a cell is waiting.
_NUM_LANES: Final = 4
_PLACES: Final = (
    Place("prefill-0", "front"),
    Place("prefill-0", "engine"),
    Place("decode-0", "front"),
    Place("decode-0", "engine"),
    Place("router", "front"),
    Place("kvstore", "front"),
)


def all_cells() -> list[Cell]:
    cells = []
    for state in STATES:
        cells += [Cell(state, "kill", place) for place in _PLACES]
        cells += [Cell(state, "stop", place) for place in _PLACES]
        cells += [Cell(state, "cancel", None), Cell(state, "deadline", None)]
    return cells


class Lanes:
    """Runs cells on fleets side by side; a fleet on which one failed is replaced."""

    def __init__(self, model: Path, bank: Bank, directory: Callable[[str], Path]) -> None:
        self._model = model
        self._bank = bank
        self._directory = directory
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, cells: Sequence[Cell], seed: int) -> None:
        waiting = sorted(enumerate(cells), key=lambda entry: entry[1].state.transport)
        waiting.reverse()
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_NUM_LANES, len(cells))):
                group.create_task(self._lane(waiting, seed))

    async def _lane(self, waiting: list[tuple[int, Cell]], seed: int) -> None:
        fleet: Fleet | None = None
        try:
            while waiting:
                index, cell = waiting.pop()
                if fleet is not None and fleet.options.transport != cell.state.transport:
                    await asyncio.to_thread(fleet.stop)
                    fleet = None
                if fleet is None:
                    fleet = await self._start(options(self._model, cell.state.transport))
                try:
                    begin_s = time.monotonic()
                    random = Random(f"{seed} {index}")
                    outcomes = await run_cell(fleet, self._bank, cell, random)
                    self.counts += outcomes.counts
                    self.counts[f"cells of {cell.fault}"] += 1
                    _tell(cell, begin_s, outcomes)
                except Exception as error:  # noqa: BLE001 - told at the end, by cell
                    self.failures.append(f"{cell}: {error!r} (logs in {fleet.directory})")
                    print(f"FAILED {self.failures[-1]}", flush=True)
                    await asyncio.to_thread(fleet.stop)
                    fleet = None
        finally:
            if fleet is not None:
                await asyncio.to_thread(fleet.stop)

    async def _start(self, wanted: FleetOptions) -> Fleet:
        fleet = Fleet(wanted, self._directory("fleet"))
        await asyncio.to_thread(fleet.start)
        # The pair of the two is made by the first request that names both.
        await serves(fleet, self._bank, Random(0))
        return fleet


def _tell(cell: Cell, begin_s: float, outcomes: Outcomes) -> None:
    """One line a cell, which `pytest -s` shows as it happens."""
    ended = f"{dict(outcomes.counts)} {dict(outcomes.refused) or ''}"
    print(f"{time.monotonic() - begin_s:5.1f} s  {cell}  {ended}", flush=True)


@pytest.mark.timeout(900)
def test_each_state_survives_each_fault(
    fault_model: Path, bank: Bank, fault_seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    begin_s = time.monotonic()
    lanes = Lanes(fault_model, bank, tmp_path_factory.mktemp)
    cells = all_cells()
    asyncio.run(lanes.run(cells, fault_seed))
    SUMMARY.add(f"matrix of {len(cells)} cells", begin_s, lanes.counts)
    assert not lanes.failures, "\n".join(lanes.failures)
