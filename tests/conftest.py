"""Fixtures for every test: models, and fleets of real processes that never outlive the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from crossdock import models
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from tests.tiny_models.directory import TinyModel, write_tiny_model

# Property tests have no time limit an example: machines are shared.
settings.register_profile(
    "crossdock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("crossdock")

# A tiny model needs little; several fleets share a machine's /dev/shm.
KV_MEMORY = "64MiB"

StartFleet = Callable[..., Fleet]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers, f32."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", TinyModel())


@pytest.fixture(scope="session")
def default_model() -> Path:
    """SmolLM2-135M-Instruct, fetched into the user's cache when it is not there."""
    return models.fetch(models.DEFAULT_MODEL)


@pytest.fixture(scope="session")
def fleet_starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFleet]:
    """Starts fleets from options and keeps them for the session; all are stopped at its end.

    A fleet that one test breaks on purpose is not to be shared: that test uses `start_fleet`.
    """
    yield from _starter(tmp_path_factory)


@pytest.fixture
def start_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFleet]:
    """Starts fleets from options; they are stopped when the test ends."""
    yield from _starter(tmp_path_factory)


def _starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartFleet]:
    fleets: list[Fleet] = []

    def start(options: FleetOptions) -> Fleet:
        fleet = Fleet(replace(options, parent_pid=os.getpid()), tmp_path_factory.mktemp("fleet"))
        fleets.append(fleet)
        fleet.start()
        return fleet

    yield start
    for fleet in fleets:
        fleet.stop()
