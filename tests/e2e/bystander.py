"""A stream that runs while others send nonsense: it must notice nothing, and nothing may stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from crossdock.cli.fleet import Fleet
from tests.e2e.caller import (
    Caller,
    engines,
    router_address,
    sampling,
    status_of,
    wait_until_clean,
)

PROMPT = [(11 * i + 5) % 256 for i in range(70)]
NUM_TOKENS = 300


@asynccontextmanager
async def bystander(fleet: Fleet) -> AsyncIterator[None]:
    """Streams the same request over and over while the block runs, and compares every bit with
    the same request alone; then every engine and its blocks must be what it was before.
    """
    params = sampling(NUM_TOKENS)
    async with Caller(router_address(fleet)) as caller:
        alone = await caller.generate(PROMPT, params)
        await asyncio.to_thread(wait_until_clean, fleet)
        before = await asyncio.to_thread(accounts, fleet)
        over = asyncio.Event()

        async def stream() -> None:
            begun = 0
            while not (begun and over.is_set()):
                assert (await caller.generate(PROMPT, params)).same == alone.same
                begun += 1

        streaming = asyncio.create_task(stream())
        try:
            yield
        finally:
            over.set()
            await streaming
        await asyncio.to_thread(wait_until_clean, fleet)
        assert await asyncio.to_thread(accounts, fleet) == before


def accounts(fleet: Fleet) -> list[tuple[int, int, int]]:
    """What a refused request must not have changed: each engine, its free and cached blocks."""
    statuses = [status_of(service) for service in engines(fleet)]
    return [(s.engine_pid, s.num_free_blocks, s.num_cached_blocks) for s in statuses]
