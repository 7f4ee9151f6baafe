"""KvStore over gRPC, around a segment in Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import kv_pb2, kvstore_pb2
from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc.status import from_rpc_error
from tests.fakes.kvstore import RunningStore, running_store

CHAIN = [kv_pb2.BlockHash(low=n, high=n + 100) for n in range(3)]
CHECKSUM = bytes(range(16))


@pytest.fixture
async def kvstore() -> AsyncIterator[RunningStore]:
    async with running_store() as running:
        yield running


def _request(
    epoch: int = 5, instance_id: str = "prefill-1", incarnation: int | None = None, **changes: Any
) -> Any:
    """The incarnation of the pair is the engine's epoch unless it is given."""
    endpoint: dict[str, Any] = {
        "instance_id": instance_id,
        "epoch": epoch,
        "descriptor": b"d",
        "layout": b"layout",
        "block_stride_bytes": 4_096,
    }
    return kv_pb2.ConnectRequest(
        endpoint=kv_pb2.EngineEndpoint(**(endpoint | changes)),
        incarnation=incarnation or epoch,
        mac_key=b"k" * 32,
    )


async def _connect(kvstore: RunningStore, **changes: Any) -> Any:
    call = kvstore.stub.Connect(_request(**changes), timeout=30)
    answer: Any = await call.read()
    assert answer.endpoint.epoch == 99
    return call


async def _reserve(kvstore: RunningStore, incarnation: int = 5) -> kvstore_pb2.ReserveResponse:
    request = kvstore_pb2.ReserveRequest(incarnation=incarnation, hashes=CHAIN, ttl_ms=60_000)
    return await kvstore.stub.Reserve(request, timeout=10)


def _filled(reserved: kvstore_pb2.ReserveResponse) -> kvstore_pb2.CommitRequest:
    for block in reserved.blocks:
        block.checksum = CHECKSUM
    return kvstore_pb2.CommitRequest(lease_id=reserved.lease_id, blocks=reserved.blocks)


async def _error_of(awaitable: Any) -> CrossdockError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaitable
    return from_rpc_error(raised.value)


async def test_the_answer_describes_the_store(kvstore: RunningStore) -> None:
    call = kvstore.stub.Connect(_request(), timeout=30)
    answer: Any = await call.read()
    endpoint = answer.endpoint
    assert (endpoint.instance_id, endpoint.descriptor) == ("kvstore-1", b"segment")
    assert (endpoint.layout, endpoint.block_stride_bytes) == (b"layout", 4_096)
    assert kvstore.segment.connected == [(1, 5, b"d")]
    call.cancel()


async def test_a_block_travels_from_reserve_to_acquire(kvstore: RunningStore) -> None:
    call = await _connect(kvstore)
    reserved = await _reserve(kvstore)
    assert [block.offset_bytes for block in reserved.blocks] == [0, 4_096, 8_192]
    assert {block.checksum for block in reserved.blocks} == {b""}
    stub = kvstore.stub
    match = kvstore_pb2.MatchRequest(chain=CHAIN)
    assert (await stub.Match(match, timeout=10)).num_blocks == 0
    assert (await stub.Commit(_filled(reserved), timeout=10)).num_published == 3
    assert (await stub.Match(match, timeout=10)).num_blocks == 3
    acquired = await stub.Acquire(
        kvstore_pb2.AcquireRequest(incarnation=5, chain=CHAIN, ttl_ms=60_000), timeout=10
    )
    assert [(block.hash.low, block.checksum) for block in acquired.blocks] == [
        (n, CHECKSUM) for n in range(3)
    ]
    await stub.Release(
        kvstore_pb2.ReleaseRequest(lease_id=acquired.lease_id, bad_blocks=CHAIN[:1]), timeout=10
    )
    assert (await stub.Match(match, timeout=10)).num_blocks == 0
    call.cancel()


async def test_another_stride_is_refused_with_both(kvstore: RunningStore) -> None:
    call = await _connect(kvstore)
    other: Any = kvstore.stub.Connect(
        _request(epoch=6, instance_id="prefill-2", block_stride_bytes=8_192), timeout=10
    )
    error = await _error_of(other.read())
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.LAYOUT_MISMATCH)
    assert "4096" in error.message
    assert "8192" in error.message
    call.cancel()


async def test_a_descriptor_that_does_not_parse_is_named(kvstore: RunningStore) -> None:
    call: Any = kvstore.stub.Connect(
        _request(descriptor=b"bad", block_stride_bytes=12_288), timeout=10
    )
    error = await _error_of(call.read())
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "endpoint.descriptor")
    assert (await _error_of(_reserve(kvstore))).reason == Reason.STALE_EPOCH
    # An engine that was never connected has not decided the size of the slots.
    await _connect(kvstore)


async def test_the_end_of_the_stream_ends_leases_with_proof(kvstore: RunningStore) -> None:
    call = await _connect(kvstore)
    await _reserve(kvstore)
    assert kvstore.slots() == (5, 3, 0, 0)
    call.cancel()
    await kvstore.until(lambda: kvstore.slots() == (8, 0, 0, 0))
    assert kvstore.segment.disconnected == [1]
    assert (await _error_of(_reserve(kvstore))).reason == Reason.STALE_EPOCH


async def test_without_proof_reservations_stay_quarantined(kvstore: RunningStore) -> None:
    kvstore.segment.writes_stop = False
    call = await _connect(kvstore)
    await _reserve(kvstore)
    call.cancel()
    await kvstore.until(lambda: kvstore.slots() == (5, 0, 0, 3))
    kvstore.segment.closed(1, writes_stopped=True)  # the process ended meanwhile
    await kvstore.until(lambda: kvstore.slots() == (8, 0, 0, 0))


async def test_the_same_engine_coming_back_is_proof(kvstore: RunningStore) -> None:
    kvstore.segment.writes_stop = False
    call = await _connect(kvstore)
    await _reserve(kvstore)
    call.cancel()
    await kvstore.until(lambda: kvstore.slots() == (5, 0, 0, 3))
    # Neither another instance is, nor the next engine of this one, while the first may be stopped.
    others = [
        await _connect(kvstore, epoch=9, instance_id="prefill-2"),
        await _connect(kvstore, epoch=6),
    ]
    assert kvstore.slots() == (5, 0, 0, 3)
    again = await _connect(kvstore, incarnation=8)
    assert kvstore.slots() == (8, 0, 0, 0)
    await _reserve(kvstore, 8)
    kvstore.segment.closed(1, writes_stopped=True)  # late, and about the former pair
    await asyncio.sleep(0.01)
    assert kvstore.slots() == (5, 3, 0, 0)
    for call in (*others, again):
        call.cancel()


async def test_a_call_of_a_former_pair_is_granted_nothing(kvstore: RunningStore) -> None:
    await _connect(kvstore)
    again = await _connect(kvstore, incarnation=8)
    assert (await _error_of(_reserve(kvstore, 5))).reason == Reason.STALE_EPOCH
    assert kvstore.slots() == (8, 0, 0, 0)
    assert (await _reserve(kvstore, 8)).lease_id
    again.cancel()


async def test_a_new_pair_waits_for_the_former_one_to_close(kvstore: RunningStore) -> None:
    kvstore.segment.automatic = False
    old = await _connect(kvstore)
    new: Any = kvstore.stub.Connect(_request(), timeout=30)
    answer = asyncio.create_task(new.read())
    await kvstore.until(lambda: kvstore.segment.disconnected == [1])
    assert len(kvstore.segment.connected) == 1
    assert not answer.done()
    kvstore.segment.closed(1, writes_stopped=True)
    await asyncio.wait_for(answer, 10)
    assert [peer_id for peer_id, _, _ in kvstore.segment.connected] == [1, 2]
    assert (await _error_of(old.read())).reason == Reason.UNREACHABLE
    new.cancel()


async def test_a_broken_transport_ends_the_stream(kvstore: RunningStore) -> None:
    call = await _connect(kvstore)
    kvstore.segment.broken(1)
    error = await _error_of(call.read())
    assert error.reason == Reason.UNREACHABLE
    assert "connection reset" in error.message
    assert kvstore.segment.disconnected == [1]


@pytest.mark.parametrize("ttl_ms", [0, 600_001])
async def test_the_ttl_is_bounded(kvstore: RunningStore, ttl_ms: int) -> None:
    request = kvstore_pb2.AcquireRequest(incarnation=5, chain=CHAIN, ttl_ms=ttl_ms)
    error = await _error_of(kvstore.stub.Acquire(request, timeout=10))
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "ttl_ms")


async def test_a_chain_is_bounded(kvstore: RunningStore) -> None:
    request = kvstore_pb2.MatchRequest(chain=[CHAIN[0]] * 32_769)
    error = await _error_of(kvstore.stub.Match(request, timeout=10))
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "chain")


async def test_a_checksum_has_its_length(kvstore: RunningStore) -> None:
    block = kvstore_pb2.StoredBlock(hash=CHAIN[0], checksum=b"short")
    request = kvstore_pb2.CommitRequest(lease_id=1, blocks=[block])
    error = await _error_of(kvstore.stub.Commit(request, timeout=10))
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "blocks")


async def test_leases_expire_by_themselves(kvstore: RunningStore) -> None:
    call = await _connect(kvstore)
    await kvstore.stub.Reserve(
        kvstore_pb2.ReserveRequest(incarnation=5, hashes=CHAIN, ttl_ms=20), timeout=10
    )
    await kvstore.until(lambda: kvstore.slots() == (5, 0, 0, 3))
    call.cancel()


async def test_status_counts_blocks_and_peers(kvstore: RunningStore) -> None:
    call = await _connect(kvstore)
    await kvstore.stub.Commit(_filled(await _reserve(kvstore)), timeout=10)
    status = await kvstore.stub.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    assert (status.role, status.instance_id, status.epoch) == ("kvstore", "kvstore-1", 99)
    assert (status.ready, status.num_blocks, status.num_free_blocks) == (True, 8, 5)
    assert status.num_cached_blocks == 3
    assert {counter.name: counter.value for counter in status.counters}["published_blocks"] == 3
    await kvstore.until(lambda: next(iter(kvstore.store.pairs)).ready)
    status = await kvstore.stub.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    assert [(p.instance_id, p.transport, p.state) for p in status.peers] == [
        ("prefill-1", "shm", "ready")
    ]
    call.cancel()
