"""An engine's traffic with a kvstore through its front, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from crossdock import _native as native
from crossdock.api.v1 import kvstore_pb2
from crossdock.engine.client import Engine
from crossdock.engine.peers import Pair
from crossdock.errors import CrossdockError
from services.kvstore.servicer import KvStoreServicer
from services.prefill import store_client
from services.prefill.store_client import StoreClient
from tests.fakes.engine import FakeEngine, event
from tests.fakes.kvstore import RunningStore, running_store

# Three hashes: low, high, low, high, ...
CHAIN = [1, 101, 2, 102, 3, 103]


@dataclass
class Attached:
    """An engine whose store traffic runs."""

    fake: FakeEngine
    engine: Engine
    client: StoreClient

    async def connected(self) -> None:
        async with asyncio.timeout(60):
            while not self.client.connected:  # noqa: ASYNC110 - a pair has no public event
                await asyncio.sleep(0.001)

    async def look_up(self, sequence_id: int) -> Any:
        self.fake.emit(event(native.StoreLookup, sequence_id=sequence_id, chain=CHAIN))
        return await self.fake.next(native.StoreFound, len(self.fake.sent(native.StoreFound)) + 1)

    async def offer(self, offer_id: int) -> Any:
        self.fake.emit(event(native.StoreOffer, offer_id=offer_id, hashes=CHAIN))
        return await self.fake.next(native.StorePlaces, len(self.fake.sent(native.StorePlaces)) + 1)

    def written(self, places: Any) -> None:
        blocks = [
            native.StoredBlock(
                hash_low=block.hash_low,
                hash_high=block.hash_high,
                offset_bytes=block.offset_bytes,
                generation=block.generation,
                checksum_low=block.hash_low * 7,
                checksum_high=5,
            )
            for block in places.blocks
        ]
        self.fake.emit(event(native.StoreWritten, lease_id=places.lease_id, blocks=blocks))


async def _attach(address: str) -> Attached:
    fake = FakeEngine(5)
    engine = Engine(fake, fake)
    await engine.wait_ready(10)
    client = StoreClient("prefill-1", address)
    client.attach(engine)
    return Attached(fake, engine, client)


async def _detach(attached: Attached) -> None:
    await attached.client.close()
    await attached.engine.shut_down()


@pytest.fixture
async def kvstore() -> AsyncIterator[RunningStore]:
    async with running_store() as running:
        yield running


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy is not to pass for a store that is slow."""
    monkeypatch.setattr(store_client, "_ACQUIRE_S", 60.0)
    monkeypatch.setattr(store_client, "_BACKGROUND_S", 60.0)


@pytest.fixture
async def attached(kvstore: RunningStore, _patient: None) -> AsyncIterator[Attached]:
    attached = await _attach(kvstore.address)
    await attached.connected()
    yield attached
    await _detach(attached)


async def test_the_pair_is_a_stores(attached: Attached, kvstore: RunningStore) -> None:
    command = attached.fake.sent(native.ConnectPeer)[0]
    assert (command.store, command.epoch, command.descriptor) == (True, 99, b"segment")
    assert kvstore.segment.connected[0][1:] == (command.incarnation, b"descriptor-5")


async def test_what_was_written_is_found(attached: Attached, kvstore: RunningStore) -> None:
    nothing = await attached.look_up(1)
    assert (nothing.sequence_id, nothing.lease_id, list(nothing.blocks)) == (1, 0, [])
    places = await attached.offer(8)
    assert (places.offer_id, places.peer_id, len(places.blocks)) == (8, 1, 3)
    attached.written(places)
    await kvstore.until(lambda: kvstore.slots() == (5, 0, 3, 0))
    found = await attached.look_up(2)
    assert (found.sequence_id, found.peer_id) == (2, 1)
    assert found.lease_id != 0
    assert [(block.hash_low, block.checksum_low) for block in found.blocks] == [
        (1, 7),
        (2, 14),
        (3, 21),
    ]
    again = await attached.offer(9)
    assert (again.offer_id, again.peer_id, again.lease_id) == (9, 1, 0)  # It has them all.


async def test_a_bad_block_is_reported_with_the_release(
    attached: Attached, kvstore: RunningStore
) -> None:
    attached.written(await attached.offer(8))
    await kvstore.until(lambda: kvstore.slots() == (5, 0, 3, 0))
    found = await attached.look_up(1)
    attached.fake.emit(event(native.StoreReadDone, lease_id=found.lease_id, bad=CHAIN[2:4]))
    await kvstore.until(lambda: kvstore.slots()[2] == 2)
    assert len((await attached.look_up(2)).blocks) == 1


async def test_places_that_were_not_written_are_given_back(
    attached: Attached, kvstore: RunningStore
) -> None:
    places = await attached.offer(8)
    assert kvstore.slots() == (5, 3, 0, 0)
    attached.fake.emit(event(native.StoreWritten, lease_id=places.lease_id, blocks=[]))
    await kvstore.until(lambda: kvstore.slots() == (8, 0, 0, 0))


async def test_a_lease_is_not_given_back_over_a_channel_that_closes(
    attached: Attached, kvstore: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = await attached.offer(8)
    disconnect = attached.engine.peers.disconnect
    tasks: list[asyncio.Task[None]] = []

    def disconnect_last(pair: Pair, error: CrossdockError) -> None:
        # What the engine said just before comes in the same turn of the loop as the end.
        written = event(native.StoreWritten, lease_id=places.lease_id, blocks=[])
        attached.engine.on_store_event(written)
        tasks.extend(attached.client._tasks)
        disconnect(pair, error)

    monkeypatch.setattr(attached.engine.peers, "disconnect", disconnect_last)
    kvstore.segment.broken(1)
    async with asyncio.timeout(20):
        while not tasks:  # noqa: ASYNC110 - the end of a stream has no public event
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)


async def test_a_store_that_stays_away_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "_RECONNECT_MIN_S", 0.01)

    def tellings(logs: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [line["log_level"] for line in logs if line["event"] == "store_not_connected"]

    with structlog.testing.capture_logs() as logs:
        attached = await _attach("127.0.0.1:1")
        async with asyncio.timeout(20):
            while len(tellings(logs)) < 3:  # noqa: ASYNC110 - nothing but the log tells
                await asyncio.sleep(0.001)
        await _detach(attached)
    assert tellings(logs)[:3] == ["warning", "debug", "debug"]


async def test_without_a_store_every_question_is_answered_with_nothing() -> None:
    attached = await _attach("127.0.0.1:1")
    assert (await attached.look_up(1)).lease_id == 0
    assert (await attached.offer(2)).peer_id == 0
    assert (await attached.offer(1)).lease_id == 0
    await _detach(attached)


async def test_a_slow_store_is_answered_for_and_then_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    async def never(_servicer: object, request: kvstore_pb2.AcquireRequest, _context: Any) -> Any:
        calls.append(len(request.chain))
        await asyncio.Event().wait()

    monkeypatch.setattr(KvStoreServicer, "Acquire", never)
    monkeypatch.setattr(store_client, "_ACQUIRE_S", 1.0)  # Enough for the question to arrive.
    monkeypatch.setattr(store_client, "_PAUSE_MIN_S", 60.0)
    async with running_store() as kvstore:
        attached = await _attach(kvstore.address)
        await attached.connected()
        assert (await attached.look_up(1)).lease_id == 0
        assert (await attached.look_up(2)).lease_id == 0
        assert calls == [3]
        await _detach(attached)


async def test_a_reservation_whose_answer_is_lost_is_freed_with_the_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserve = KvStoreServicer.Reserve

    async def too_late(servicer: KvStoreServicer, request: Any, context: Any) -> Any:
        response = await reserve(servicer, request, context)
        await asyncio.Event().wait()
        return response

    monkeypatch.setattr(KvStoreServicer, "Reserve", too_late)
    monkeypatch.setattr(store_client, "_BACKGROUND_S", 0.2)
    async with running_store() as kvstore:
        attached = await _attach(kvstore.address)
        await attached.connected()
        assert (await attached.offer(8)).lease_id == 0
        await kvstore.until(lambda: kvstore.slots() == (8, 0, 0, 0))
        await attached.connected()
        await _detach(attached)


@pytest.mark.usefixtures("_patient")
async def test_a_checksum_of_another_length_is_answered_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def grant(_servicer: object, _request: object, _context: object) -> Any:
        block = kvstore_pb2.StoredBlock(checksum=bytes(range(24)))
        return kvstore_pb2.AcquireResponse(lease_id=1, blocks=[block])

    monkeypatch.setattr(KvStoreServicer, "Acquire", grant)
    async with running_store() as kvstore:
        attached = await _attach(kvstore.address)
        await attached.connected()
        assert (await attached.look_up(1)).lease_id == 1
        await _detach(attached)


@pytest.mark.usefixtures("_patient")
async def test_a_store_that_ends_and_returns_is_connected_again() -> None:
    async with running_store() as first:
        port = int(first.address.rsplit(":", 1)[1])
        attached = await _attach(first.address)
        await attached.connected()
        former = await attached.offer(1)
    assert (await attached.fake.next(native.DisconnectPeer)).peer_id == 1
    assert (await attached.look_up(1)).lease_id == 0
    async with running_store(port, epoch=7_000) as second:
        await attached.connected()
        assert (await attached.offer(2)).peer_id == 2
        assert second.slots()[1] == 3
        # The lease was of the store that ended: that its writes are over says nothing here.
        attached.written(former)
        await attached.look_up(2)
        assert second.slots()[1] == 3
        await _detach(attached)


async def test_a_new_engine_gets_a_pair_of_its_own(
    attached: Attached, kvstore: RunningStore
) -> None:
    attached.fake.kill()
    await attached.engine.wait_down()
    fake = FakeEngine(6)
    engine = Engine(fake, fake)
    await engine.wait_ready(10)
    attached.client.attach(engine)
    await attached.connected()
    fake.emit(event(native.StoreOffer, offer_id=1, hashes=CHAIN))
    assert (await fake.next(native.StorePlaces)).lease_id != 0
    assert [pair.remote.epoch for pair in kvstore.store.pairs] == [6]
    await engine.shut_down()
