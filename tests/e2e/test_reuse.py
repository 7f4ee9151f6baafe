"""What the kvstore holds outlives the engine that computed it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from crossdock.cli.fleet_plan import FleetOptions
from tests.conftest import KV_MEMORY, StartFleet
from tests.e2e.caller import (
    Caller,
    router_address,
    sampling,
    services,
    status_of,
    wait_until_clean,
)

PROMPT = [(11 * i + 5) % 256 for i in range(700)]


def test_a_new_engine_reads_what_the_old_one_stored(
    tiny_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(FleetOptions(tiny_model, kv_memory=KV_MEMORY))
    (prefill,) = services(fleet, "prefill")
    (store,) = services(fleet, "kvstore")

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            # The first request connects the store; what it computes may be too early to be kept.
            await caller.generate([1, 2, 3], sampling(1))
            first = await caller.generate(PROMPT, sampling(8))
            deadline_s = time.monotonic() + 20
            while status_of(store).num_cached_blocks < len(PROMPT) // 32:
                assert time.monotonic() < deadline_s, "the prompt's blocks never reach the store"
                await asyncio.sleep(0.1)
            os.kill(status_of(prefill).engine_pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until_clean, fleet)
            deadline_s = time.monotonic() + 20
            cached = 0
            # A new engine pairs with the store in the background; until then it computes.
            while cached == 0:
                assert time.monotonic() < deadline_s, "the store is never read"
                os_pid = status_of(prefill).engine_pid
                again = await caller.generate(PROMPT, sampling(8))
                assert again.same == first.same
                counters = {c.name: c.value for c in status_of(prefill).counters}
                cached = counters["store_blocks_read"]
                if cached == 0:
                    os.kill(os_pid, signal.SIGKILL)
                    await asyncio.to_thread(wait_until_clean, fleet)
                    await asyncio.sleep(1)
            assert again.finish is not None
            assert again.finish.usage.cached_prompt_tokens == (len(PROMPT) - 1) // 32 * 32
            assert counters["store_blocks_bad"] == 0

    asyncio.run(run())
    wait_until_clean(fleet)
