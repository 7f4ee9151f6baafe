"""A prefill engine's blocks in a kvstore: written back, found again, and done without."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from crossdock.api.v1 import kv_pb2
from services.prefill import store_client
from tests.integration.pair.conftest import (
    Instance,
    Pair,
    decode_instance,
    prefill_instance,
    prompt,
    running_pair,
    store_instance,
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy is not to pass for a store that is slow: what is asked is kept."""
    monkeypatch.setattr(store_client, "_ACQUIRE_S", 60.0)
    monkeypatch.setattr(store_client, "_BACKGROUND_S", 60.0)


@pytest.fixture(params=["shm", "tcp"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def pair(tiny_model: Path, transport: str) -> AsyncIterator[Pair]:
    async with running_pair(tiny_model, with_store=True, transport=transport) as running:
        await running.prefill.until(connected_to_store)
        yield running


def store_of(pair: Pair) -> Instance:
    assert pair.store is not None
    return pair.store


def connected_to_store(status: kv_pb2.InstanceStatus) -> bool:
    return any(peer.instance_id == "kvstore-1" and peer.state == "ready" for peer in status.peers)


def counter(status: kv_pb2.InstanceStatus, name: str) -> int:
    return next(counter.value for counter in status.counters if counter.name == name)


async def restart_engine(prefill: Instance) -> None:
    before = await prefill.status()
    os.kill(before.engine_pid, signal.SIGKILL)
    await prefill.until(lambda status: status.epoch != before.epoch and connected_to_store(status))


async def test_a_new_engine_finds_what_the_old_one_computed(pair: Pair, transport: str) -> None:
    cold = await pair.handed_off(prompt(200))
    await store_of(pair).until(lambda status: status.num_cached_blocks == 6)
    assert (await store_of(pair).status()).peers[0].transport == transport
    await restart_engine(pair.prefill)
    warm = await pair.handed_off(prompt(200))
    assert warm.digests == cold.digests
    assert warm.prefill is not None
    assert warm.prefill.cached_prompt_tokens == 192
    status = await pair.prefill.status()
    assert counter(status, "store_blocks_read") == 6
    assert counter(status, "store_blocks_bad") == 0
    ended = await store_of(pair).until(lambda status: counter(status, "leases") == 0)
    assert counter(ended, "hit_blocks") == 6
    await pair.prefill.until_free()


async def test_an_engine_killed_while_it_writes_leaves_no_place_behind(pair: Pair) -> None:
    for seed in range(3):
        handoffs = [await pair.start(prompt(1_000, seed=10 * seed + i), 1) for i in range(3)]
        await restart_engine(pair.prefill)
        for handoff in handoffs:
            handoff.cancel()
    status = await store_of(pair).until(lambda status: counter(status, "leases") == 0)
    assert status.num_quarantined_blocks == 0
    assert status.num_owned_blocks == 0
    assert status.num_free_blocks + status.num_cached_blocks == status.num_blocks
    # What was published before each death is whole: it is read, verified and used.
    for seed in range(3):
        tokens = prompt(1_000, seed=10 * seed)
        assert (await pair.handed_off(tokens)).digests == (await pair.local(tokens)).digests
    assert counter(await pair.prefill.status(), "store_blocks_bad") == 0


async def test_a_store_may_end_and_return(tiny_model: Path, transport: str) -> None:
    async with AsyncExitStack() as stack:
        first = AsyncExitStack()
        store = await first.enter_async_context(store_instance(transport))
        prefill = await stack.enter_async_context(
            prefill_instance(tiny_model, store.address, transport=transport)
        )
        decode = await stack.enter_async_context(decode_instance(tiny_model, transport=transport))
        pair = Pair(prefill, decode)
        await prefill.until(connected_to_store)
        await pair.handed_off(prompt(100))
        await first.aclose()
        await prefill.until(lambda status: not connected_to_store(status))
        assert len((await pair.handed_off(prompt(101))).tokens) == 8
        port = int(store.address.rsplit(":", 1)[1])
        again = await stack.enter_async_context(store_instance(transport, port))
        await prefill.until(connected_to_store)
        await pair.handed_off(prompt(102))
        await again.until(lambda status: status.num_cached_blocks == 3)
