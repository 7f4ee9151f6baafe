"""Other architectures than Llama through a fleet: latent attention with experts, and Qwen3.

transformers says which ids are right; a fleet that hands every prompt off gives those, with the
digests of one engine alone. Where prefill and decode hold the KV cache in different types, the ids
are those of two executors and a conversion done by hand.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest

from crossdock._native import Executor
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.models.cache import resolve
from crossdock.models.catalog import BUNDLED
from crossdock.tokenization import Tokenizer
from tests.conftest import KV_MEMORY, StartFleet
from tests.e2e.caller import (
    Caller,
    one_engine,
    router_address,
    sampling,
    wait_until_clean,
)
from tests.oracle.reference import Oracle, assert_same_ids
from tests.tiny_models.directory import PRESETS, write_tiny_model

# transformers is loaded, on a machine that may be busy.
pytestmark = pytest.mark.timeout(600)

NUM_GENERATED = 40
PROMPT_TOKENS = (1, 33, 100, 300)  # within a block, over one, and more


@dataclass(frozen=True)
class Model:
    """A model and prompts in its own vocabulary."""

    directory: Path
    prompts: list[list[int]]


@pytest.fixture(scope="module", params=["deepseek_v3", "qwen3", "tiny-mla"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param in BUNDLED:
        directory = resolve(request.param)
        text = (directory / "heldout.txt").read_text(encoding="utf-8")
        ids = Tokenizer.load(directory).encode(text[: 10 * max(PROMPT_TOKENS)])
    else:
        spec = PRESETS[request.param]
        directory = write_tiny_model(tmp_path_factory.mktemp("models") / request.param, spec)
        ids = [(11 * i * i + 5 * i) % spec.vocab_size for i in range(2 * max(PROMPT_TOKENS))]
    return Model(directory, [ids[count : 2 * count] for count in PROMPT_TOKENS])


def options(model: Model, kv_dtype: str, decode_kv_dtype: str = "") -> FleetOptions:
    verify = ["--verify-handoff"]
    return FleetOptions(
        model.directory,
        kvstore=False,
        kv_dtype=kv_dtype,
        decode_kv_dtype=decode_kv_dtype,
        transport="shm",
        kv_memory=KV_MEMORY,
        arguments={"prefill": verify, "decode": verify},
    )


def test_a_fleet_gives_the_bits_of_one_engine_and_the_ids_of_transformers(
    model: Model, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(options(model, "f32"))

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            params = [sampling(NUM_GENERATED) for _ in model.prompts]
            answers = await caller.generate_all(model.prompts, params)
        oracle = Oracle(model.directory)
        for prompt, answer in zip(model.prompts, answers, strict=True):
            assert answer.finish is not None
            assert answer.finish.timings.transport == "shm"
            alone = await asyncio.to_thread(one_engine, fleet, prompt, NUM_GENERATED)
            assert answer.same == alone.same, f"prompt of {len(prompt)}"
            assert_same_ids(answer.ids, oracle.greedy(prompt, NUM_GENERATED), oracle)

    asyncio.run(run())
    wait_until_clean(fleet)


def test_prefill_and_decode_hold_the_cache_in_types_of_their_own(
    model: Model, start_fleet: StartFleet
) -> None:
    decode_kv_dtype = "fp8_e4m3" if model.directory.name == "qwen3" else "fp8_ds_mla"
    fleet = start_fleet(options(model, "bf16", decode_kv_dtype))

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            params = [sampling(NUM_GENERATED) for _ in model.prompts]
            answers = await caller.generate_all(model.prompts, params)
        for prompt, answer in zip(model.prompts, answers, strict=True):
            assert answer.ids == converted_by_hand(model, prompt, "bf16", decode_kv_dtype)

    asyncio.run(run())
    wait_until_clean(fleet)


def converted_by_hand(model: Model, prompt: list[int], kv_dtype: str, to: str) -> list[int]:
    """Greedy ids: the prompt by one executor, its blocks converted, the rest by another."""
    table = list(range(1 + (len(prompt) + NUM_GENERATED) // 32))
    first, second = (
        Executor.load(str(model.directory), num_blocks=len(table), kv_dtype=dtype)
        for dtype in (kv_dtype, to)
    )
    ids = [int(first.run([(prompt, 0, table, True)]).argmax())]
    for block_id in table:
        second.convert_block(first, block_id, block_id)
    while len(ids) < NUM_GENERATED:
        position = len(prompt) + len(ids) - 1
        ids.append(int(second.run([(ids[-1:], position, table, True)]).argmax()))
    return ids
