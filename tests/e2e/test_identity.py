"""One prompt gives one answer, to the bit, wherever and however it is computed.

transformers says which ids are right; then one engine that does both phases, and fleets of several
sizes over both transports, cold and with every prefix warm, must all give those ids with equal
digests of every logit row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.tokenization import Tokenizer
from tests.conftest import StartFleet
from tests.e2e.caller import (
    Answer,
    Caller,
    one_engine,
    router_address,
    sampling,
    wait_until_clean,
)
from tests.oracle.prompts import GOLDEN_IDS, NUM_GENERATED, build_prompts
from tests.oracle.reference import Oracle, assert_same_ids

# Loading, prefill and decode of the default model on a machine that may be busy.
pytestmark = pytest.mark.timeout(400)

SEEDED = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 20_240_229}
TOPOLOGIES = {
    "1+1 shm": (1, 1, "shm"),
    "1+1 tcp": (1, 1, "tcp"),
    "2+2 shm": (2, 2, "shm"),
    "2+2 tcp": (2, 2, "tcp"),
}


@dataclass(frozen=True)
class Topology:
    """A running fleet and what it consists of: prefill, decode, transport."""

    name: str
    shape: tuple[int, int, str]
    fleet: Fleet


@pytest.fixture(scope="module")
def prompts(default_model: Path) -> dict[str, list[int]]:
    return build_prompts(Tokenizer.load(default_model))


def options(model: Path, num_prefill: int, num_decode: int, transport: str) -> FleetOptions:
    verify = ["--verify-handoff"]
    return FleetOptions(
        model,
        num_prefill,
        num_decode,
        kv_dtype="f32",
        transport=transport,
        kv_memory="512MiB",
        arguments={"prefill": verify, "decode": verify},
    )


@pytest.fixture(scope="module")
def first_fleet(default_model: Path, fleet_starter: StartFleet) -> Iterator[Fleet]:
    fleet = fleet_starter(options(default_model, 1, 1, "shm"))
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def alone(first_fleet: Fleet, prompts: dict[str, list[int]]) -> dict[str, Answer]:
    """Every prompt by itself, on one engine that does both phases."""
    return {
        name: one_engine(first_fleet, prompt, NUM_GENERATED) for name, prompt in prompts.items()
    }


@pytest.fixture(scope="module")
def seeded_alone(first_fleet: Fleet, prompts: dict[str, list[int]]) -> Answer:
    return one_engine(first_fleet, prompts["french"], NUM_GENERATED, **SEEDED)


@pytest.fixture(params=list(TOPOLOGIES))
def topology(
    request: pytest.FixtureRequest,
    default_model: Path,
    first_fleet: Fleet,
    start_fleet: StartFleet,
) -> Topology:
    """A running fleet of each shape."""
    shape: tuple[int, int, str] = TOPOLOGIES[request.param]
    if request.param == "1+1 shm":
        return Topology(request.param, shape, first_fleet)
    return Topology(request.param, shape, start_fleet(options(default_model, *shape)))


def test_one_engine_agrees_with_transformers(
    alone: dict[str, Answer], prompts: dict[str, list[int]], default_model: Path
) -> None:
    oracle = Oracle(default_model)
    assert tuple(alone["golden"].ids[: len(GOLDEN_IDS)]) == GOLDEN_IDS
    for name, prompt in prompts.items():
        assert len(alone[name].ids) == NUM_GENERATED
        assert len(set(alone[name].digests)) == NUM_GENERATED, "digests of different rows differ"
        assert_same_ids(alone[name].ids, oracle.greedy(prompt, NUM_GENERATED), oracle)


def test_every_topology_gives_the_same_bits(
    topology: Topology,
    alone: dict[str, Answer],
    seeded_alone: Answer,
    prompts: dict[str, list[int]],
) -> None:
    fleet = topology.fleet

    async def run() -> tuple[list[Answer], list[Answer], Answer]:
        async with Caller(router_address(fleet)) as caller:
            params = [sampling(NUM_GENERATED) for _ in prompts]
            cold = await caller.generate_all(list(prompts.values()), params)
            await asyncio.to_thread(wait_until_clean, fleet)  # What they hold is not cached yet.
            warm = await caller.generate_all(list(prompts.values()), params)
            seeded = await caller.generate(prompts["french"], sampling(NUM_GENERATED, **SEEDED))
            return cold, warm, seeded

    cold, warm, seeded = asyncio.run(run())
    for answers in (cold, warm):
        for name, answer in zip(prompts, answers, strict=True):
            assert answer.same == alone[name].same, f"{name} differs over {topology.name}"
            assert answer.finish is not None
            assert answer.finish.timings.transport == topology.shape[2]
    for name, answer in zip(prompts, warm, strict=True):
        # All whole blocks before the last token are found again, unless another instance, which
        # has not seen the prompt, was chosen.
        cached = answer.finish.usage.cached_prompt_tokens if answer.finish else 0
        if topology.shape[:2] == (1, 1):
            assert cached == (len(prompts[name]) - 1) // 32 * 32, name
    assert seeded.same == seeded_alone.same
    assert seeded.ids != alone["french"].ids
    wait_until_clean(fleet)
