"""A crowd of requests: all finish, and each has the bits that it has alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from crossdock.cli.fleet_plan import FleetOptions
from tests.conftest import KV_MEMORY, StartFleet
from tests.e2e.caller import Answer, Caller, router_address, sampling, wait_until_clean

NUM_REQUESTS = 64
PROMPT_TOKENS_MAX = 1500


def make_prompts(vocab_size: int) -> list[list[int]]:
    """Lengths from one token up, some sharing a prefix with others."""
    source = random.Random(64)
    shared = [source.randrange(vocab_size) for _ in range(PROMPT_TOKENS_MAX)]
    prompts = []
    for index in range(NUM_REQUESTS):
        length = 1 + index * (PROMPT_TOKENS_MAX - 1) // (NUM_REQUESTS - 1)
        own = [source.randrange(vocab_size) for _ in range(length)]
        num_shared = length // 2 if index % 3 == 0 else 0
        prompts.append(shared[:num_shared] + own[num_shared:])
    return prompts


def test_64_requests_at_once_equal_themselves_alone(
    tiny_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(FleetOptions(tiny_model, 2, 2, kv_memory=KV_MEMORY))
    prompts = make_prompts(256)
    source = random.Random(7)
    params = [
        sampling(source.randint(1, 24), temperature=0.9 * (index % 2), seed=index)
        for index in range(NUM_REQUESTS)
    ]

    async def run() -> tuple[list[Answer], list[Answer]]:
        async with Caller(router_address(fleet)) as caller:
            together = await caller.generate_all(prompts, params)
            alone = [await caller.generate(p, s) for p, s in zip(prompts, params, strict=True)]
            return together, alone

    together, alone = asyncio.run(run())
    for index in range(NUM_REQUESTS):
        assert together[index].same == alone[index].same, f"request {index}"
        assert len(together[index].ids) == params[index].max_tokens
    instances = {a.finish.timings.decode_instance for a in together if a.finish}
    assert instances == {"decode-0", "decode-1"}
    wait_until_clean(fleet)
