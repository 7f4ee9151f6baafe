"""A few seeds with every run of the tests; `make sim` runs hundreds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.sim.scenario import draw
from tests.sim.simulation import Simulation

_NUM_SEEDS = 12
_NUM_FAULTLESS_SEEDS = 3


@pytest.mark.parametrize("seed", range(_NUM_SEEDS))
def test_seed(seed: int) -> None:
    result = Simulation(draw(seed)).run()
    assert not result.breaches, f"replay: make sim SEED={seed}"


@pytest.mark.parametrize("seed", range(_NUM_FAULTLESS_SEEDS))
def test_without_faults_everybody_is_answered(seed: int) -> None:
    """Whoever did not go away, or wanted it too fast, has an answer or is told of overload."""
    result = Simulation(draw(seed, faults=False)).run()
    assert not result.breaches
    assert not result.counts["answer UNAVAILABLE"]


def _digest(seed: int, hash_seed: str) -> str:
    program = (
        "from tests.sim.scenario import draw; from tests.sim.simulation import Simulation;"
        f"print(Simulation(draw({seed})).run().digest)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("seed", [3, 6, 7])
def test_a_seed_always_does_the_same(seed: int) -> None:
    digests = {_digest(seed, hash_seed) for hash_seed in ("1", "2")}
    assert len(digests) == 1
    assert digests != {""}
