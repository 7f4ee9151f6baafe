"""What was computed is found again: in the kvstore, and in the decode instance."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from crossdock.cli.fleet_plan import FleetOptions
from crossdock.cli.fleet_record import ServiceRecord
from tests.conftest import KV_MEMORY, StartFleet
from tests.e2e.caller import (
    Answer,
    Caller,
    one_engine,
    router_address,
    sampling,
    services,
    status_of,
    wait_until_clean,
    wait_until_connected,
)

PROMPT = [(11 * i + 5) % 256 for i in range(700)]
NUM_BLOCKS = len(PROMPT) // 32
TRIES_MAX = 20

# Some of what is shown here is given up where the machine is slow, and then tried again.
pytestmark = pytest.mark.timeout(400)


def test_a_new_engine_reads_what_the_old_one_stored(
    tiny_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(FleetOptions(tiny_model, kv_memory=KV_MEMORY))
    (prefill,) = services(fleet, "prefill")
    (store,) = services(fleet, "kvstore")

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            await asyncio.to_thread(wait_until_connected, fleet)
            prompt, first = await stored_prompt(caller, store)
            # A store that does not answer at once is done without: until the next engine.
            for _ in range(TRIES_MAX):
                os.kill(status_of(prefill).engine_pid, signal.SIGKILL)
                await asyncio.to_thread(wait_until_clean, fleet)
                await asyncio.to_thread(wait_until_connected, fleet)
                again = await caller.generate(prompt, sampling(8))
                assert again.same == first.same
                assert again.finish is not None
                counters = {c.name: c.value for c in status_of(prefill).counters}
                assert counters["store_blocks_bad"] == 0
                if again.finish.usage.cached_prompt_tokens == NUM_BLOCKS * 32:
                    break
            else:
                pytest.fail(f"the store is never read: {status_of(prefill)}")
            assert counters["store_blocks_read"] == NUM_BLOCKS

    asyncio.run(run())
    wait_until_clean(fleet)


async def stored_prompt(caller: Caller, store: ServiceRecord) -> tuple[list[int], Answer]:
    """A prompt whose blocks are all in the store, and its answer; what is computed may be dropped
    where the machine is slow.
    """
    for number in range(TRIES_MAX):
        prompt = [number, *PROMPT[1:]]
        before = status_of(store).num_cached_blocks
        answer = await caller.generate(prompt, sampling(8))
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s:
            if status_of(store).num_cached_blocks == before + NUM_BLOCKS:
                return prompt, answer
            await asyncio.sleep(0.1)
    pytest.fail("a prompt's blocks never reach the store")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_second_turn_reads_what_its_decode_instance_holds(
    transport: str, tiny_model: Path, start_fleet: StartFleet
) -> None:
    """The continuation of a first turn is in the decode instance alone."""
    fleet = start_fleet(FleetOptions(tiny_model, kv_memory=KV_MEMORY, transport=transport))
    (prefill,) = services(fleet, "prefill")

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            for conversation in range(TRIES_MAX):
                first = [(7 * i + conversation) % 256 for i in range(200)]
                answer = await caller.generate(first, sampling(70))
                second = [*first, *answer.ids, *range(40)]
                again = await caller.generate(second, sampling(8))
                cold = await asyncio.to_thread(one_engine, fleet, second, 8)
                assert again.same == cold.same
                assert again.finish is not None
                # The last token that was generated was never computed: 269 of 270 were.
                if again.finish.usage.cached_prompt_tokens == 269 // 32 * 32:
                    break
                # A machine that stops the reading thread makes the next read look too slow.
            else:
                pytest.fail(f"nothing is read: {status_of(prefill)}")

    asyncio.run(run())
    status = status_of(prefill)
    counters = {c.name: c.value for c in status.counters}
    assert counters["pairs_blocks_read"] >= 2
    assert counters["pairs_bytes_read"] > 0
    assert counters["pairs_reads_failed"] == 0
    (pair,) = [p for p in status.peers if p.num_handoffs]
    assert pair.num_blocks_read == counters["pairs_blocks_read"]
    assert (pair.transport, pair.staged) == (transport, False)
    wait_until_clean(fleet)
