"""Prompts in the expanded form of latent attention: one request gives one answer, to the bit, where
its prompt is handed off, where its history was generated, and where its decode engine dies."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from crossdock.cli.errors import FleetError
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.cli.fleet_record import ServiceRecord
from tests.conftest import KV_MEMORY, StartFleet
from tests.e2e.caller import (
    Answer,
    Caller,
    engines,
    one_engine,
    router_address,
    sampling,
    services,
    status_of,
    wait_until_clean,
)
from tests.tiny_models.directory import PRESETS, write_tiny_model

VOCAB_SIZE = PRESETS["deepseek_v3"].vocab_size
PROMPT = [(11 * i * i + 5 * i) % VOCAB_SIZE for i in range(150)]
NUM_GENERATED = 90
TRIES_MAX = 20


@pytest.fixture(scope="module")
def mla_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "mla", PRESETS["deepseek_v3"])


def options(model: Path, num_decode: int = 1) -> FleetOptions:
    verify = ["--verify-handoff"]
    return FleetOptions(
        model,
        num_decode=num_decode,
        mla_prefill="expanded",
        kv_memory=KV_MEMORY,
        transport="shm",
        arguments={"prefill": verify, "decode": verify},
    )


def cached_tokens(answer: Answer) -> int:
    assert answer.finish is not None
    return answer.finish.usage.cached_prompt_tokens


def test_a_second_turn_is_what_it_is_cold(mla_model: Path, start_fleet: StartFleet) -> None:
    fleet = start_fleet(options(mla_model))
    for service in engines(fleet):
        assert "attn=mla-expanded-run512-v1" in status_of(service).numerics_id

    async def run() -> tuple[Answer, Answer]:
        async with Caller(router_address(fleet)) as caller:
            first = await caller.generate(PROMPT, sampling(NUM_GENERATED))
            history = [*PROMPT, *first.ids, 7, 8, 9]
            return first, await caller.generate(history, sampling(20))

    first, second = asyncio.run(run())
    history = [*PROMPT, *first.ids, 7, 8, 9]
    assert first.same == one_engine(fleet, PROMPT, NUM_GENERATED).same
    assert second.same == one_engine(fleet, history, 20).same
    # Nothing but the first prompt's own blocks, though the decode engine holds all of the history.
    assert cached_tokens(second) == len(PROMPT) // 32 * 32
    wait_until_clean(fleet)


@pytest.mark.parametrize("num_before", [1, 40])
def test_a_replay_goes_on_with_the_same_bits(
    num_before: int, mla_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(options(mla_model, num_decode=2))
    whole = one_engine(fleet, PROMPT, 300)

    async def run() -> Answer:
        decoding = [(s, status_of(s).engine_pid) for s in services(fleet, "decode")]
        num_killed = 0

        def kill_when_due(answer: Answer) -> None:
            nonlocal num_killed
            if len(answer.ids) >= num_before and not num_killed:
                num_killed = kill_running_engines(decoding)

        async with Caller(router_address(fleet)) as caller:
            return await caller.generate(PROMPT, sampling(300), on_message=kill_when_due)

    # On a busy machine this process may be told of the first tokens when the last are made.
    for _ in range(TRIES_MAX):
        moved = asyncio.run(run())
        assert moved.same == whole.same
        wait_until_clean(fleet)
        if moved.finish is not None and moved.finish.timings.attempts == 2:
            return
    pytest.fail("no engine had the request when it was killed")


def kill_running_engines(decoding: list[tuple[ServiceRecord, int]]) -> int:
    """Of these instances and their engines; returns how many had a sequence and were killed."""
    for _, pid in decoding:  # Whoever runs the request is not to end it while it is looked for.
        os.kill(pid, signal.SIGSTOP)
    num_killed = 0
    for service, pid in decoding:
        running = status_of(service).num_reserved_sequences > 0
        os.kill(pid, signal.SIGKILL if running else signal.SIGCONT)
        num_killed += running
    return num_killed


def test_a_model_without_latents_is_refused(tiny_model: Path, start_fleet: StartFleet) -> None:
    with pytest.raises(FleetError, match="mla_prefill: expanded needs a model with latent"):
        start_fleet(options(tiny_model))
