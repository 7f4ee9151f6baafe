"""A model, the right answers to a bank of prompts, and the summary of what was done."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from crossdock.cli.fleet import Fleet
from tests.e2e.caller import router_address
from tests.faults.load import Bank, options, write_model
from tests.faults.summary import SUMMARY


@pytest.fixture(scope="session")
def fault_seed() -> int:
    """From CROSSDOCK_FAULT_SEED, or a fresh one; printed, so that a run can be repeated."""
    given = os.environ.get("CROSSDOCK_FAULT_SEED")
    seed = int(given) if given else int.from_bytes(os.urandom(4), "little")
    SUMMARY.lines.append(f"seed {seed}: repeat it with CROSSDOCK_FAULT_SEED={seed}")
    return seed


@pytest.fixture(scope="session")
def fault_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "faults")


@pytest.fixture(scope="session")
def bank(fault_model: Path, fault_seed: int, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """What an undisturbed fleet answers."""
    bank = Bank(fault_seed)
    with Fleet(options(fault_model, "shm"), tmp_path_factory.mktemp("undisturbed")) as fleet:
        asyncio.run(bank.learn(router_address(fleet)))
    return bank


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SUMMARY.lines:
        terminalreporter.section("faults")
        for line in SUMMARY.lines:
            terminalreporter.write_line(line)
