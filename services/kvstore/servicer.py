"""KvStore over gRPC: translation only."""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the service.

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Final

import grpc

from crossdock.api.v1 import kv_pb2, kvstore_pb2, kvstore_pb2_grpc
from crossdock.engine.translation import (
    digest_bytes,
    digest_words,
    peer_status,
    remote_of,
    terms_of,
)
from crossdock.errors import invalid_argument
from services.kvstore import limits
from services.kvstore.store import Store
from services.kvstore.tier import Hash, Lease

NAME = kvstore_pb2.DESCRIPTOR.services_by_name["KvStore"].full_name
# A drain waits for no stream that lives as long as its caller, and lets leases end.
UNGATED = tuple(f"/{NAME}/{method}" for method in ("Connect", "GetStatus", "Commit", "Release"))

_COUNTERS: Final = (
    "hit_blocks",
    "miss_blocks",
    "reserved_blocks",
    "published_blocks",
    "abandoned_blocks",
    "evicted_blocks",
    "dropped_blocks",
    "stale_drops",
    "expired_leases",
    "refused_reservations",
)


class KvStoreServicer(kvstore_pb2_grpc.KvStoreServicer):
    """Errors are turned into statuses by the server's interceptor."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Connect(
        self, request: kv_pb2.ConnectRequest, context: Any
    ) -> AsyncGenerator[kv_pb2.ConnectResponse, None]:
        remote, terms = remote_of(request.endpoint), terms_of(request)
        store = self._store
        async with aclosing(store.hold_pair(remote, terms)) as connected:
            async for _ in connected:
                endpoint = kv_pb2.EngineEndpoint(
                    instance_id=store.instance_id,
                    epoch=store.epoch,
                    descriptor=store.descriptor,
                    layout=remote.layout,
                    layout_text=remote.layout_text,
                    block_stride_bytes=remote.block_stride_bytes,
                )
                yield kv_pb2.ConnectResponse(endpoint=endpoint)

    async def Match(
        self, request: kvstore_pb2.MatchRequest, context: Any
    ) -> kvstore_pb2.MatchResponse:
        chain = _hashes("chain", request.chain)
        return kvstore_pb2.MatchResponse(num_blocks=self._store.tier.match(chain))

    async def Acquire(
        self, request: kvstore_pb2.AcquireRequest, context: Any
    ) -> kvstore_pb2.AcquireResponse:
        lease = self._store.acquire(
            request.incarnation, _hashes("chain", request.chain), _ttl_ms(request.ttl_ms)
        )
        return kvstore_pb2.AcquireResponse(lease_id=lease.lease_id, blocks=_blocks(lease))

    async def Reserve(
        self, request: kvstore_pb2.ReserveRequest, context: Any
    ) -> kvstore_pb2.ReserveResponse:
        lease = self._store.reserve(
            request.incarnation, _hashes("hashes", request.hashes), _ttl_ms(request.ttl_ms)
        )
        blocks = _blocks(lease)
        for block in blocks:
            block.checksum = b""
        return kvstore_pb2.ReserveResponse(lease_id=lease.lease_id, blocks=blocks)

    async def Commit(
        self, request: kvstore_pb2.CommitRequest, context: Any
    ) -> kvstore_pb2.CommitResponse:
        hashes = _hashes("blocks", [block.hash for block in request.blocks])
        for index, block in enumerate(request.blocks):
            if len(block.checksum) != limits.CHECKSUM_BYTES:
                raise invalid_argument(
                    "blocks",
                    f"[{index}].checksum has {len(block.checksum)} bytes; must have "
                    f"{limits.CHECKSUM_BYTES}",
                )
        checksums = [digest_words(block.checksum) for block in request.blocks]
        published = self._store.tier.commit(
            request.lease_id, list(zip(hashes, checksums, strict=True))
        )
        return kvstore_pb2.CommitResponse(num_published=published)

    async def Release(
        self, request: kvstore_pb2.ReleaseRequest, context: Any
    ) -> kvstore_pb2.ReleaseResponse:
        self._store.tier.release(request.lease_id, _hashes("bad_blocks", request.bad_blocks))
        return kvstore_pb2.ReleaseResponse()

    async def GetStatus(
        self, request: kv_pb2.InstanceRequest, context: Any
    ) -> kv_pb2.InstanceStatus:
        return await status_of(self._store)


async def status_of(store: Store) -> kv_pb2.InstanceStatus:
    """The store as it is now."""
    message = kv_pb2.InstanceStatus(
        instance_id=store.instance_id,
        role="kvstore",
        epoch=store.epoch,
        draining=store.draining,
        ready=not store.draining,
        front_pid=os.getpid(),
        num_blocks=store.tier.num_slots,
        peers=[peer_status(pair) for pair in store.pairs],
    )
    statistics = store.tier.statistics()
    if statistics is not None:
        message.num_free_blocks = statistics.num_free
        message.num_cached_blocks = statistics.num_published + statistics.num_retired
        message.num_owned_blocks = statistics.num_writing
        message.num_quarantined_blocks = statistics.num_quarantined
        for name in _COUNTERS:
            message.counters.add(name=name, value=getattr(statistics, name))
        message.counters.add(name="leases", value=statistics.num_leases)
        message.counters.add(name="pinned_blocks", value=statistics.num_pinned)
    return message


def register(servicer: KvStoreServicer) -> Callable[[grpc.aio.Server], None]:
    """Adds the servicer to a server."""
    return lambda server: kvstore_pb2_grpc.add_KvStoreServicer_to_server(servicer, server)


def _hashes(field: str, messages: Iterable[kv_pb2.BlockHash]) -> list[Hash]:
    hashes = [(message.low, message.high) for message in messages]
    if len(hashes) > limits.CHAIN_BLOCKS_MAX:
        raise invalid_argument(
            field, f"has {len(hashes)} blocks; at most {limits.CHAIN_BLOCKS_MAX}"
        )
    return hashes


def _ttl_ms(value: int) -> int:
    if not limits.TTL_MS_MIN <= value <= limits.TTL_MS_MAX:
        raise invalid_argument(
            "ttl_ms", f"is {value}; must be in [{limits.TTL_MS_MIN}, {limits.TTL_MS_MAX}]"
        )
    return value


def _blocks(lease: Lease) -> list[kvstore_pb2.StoredBlock]:
    return [
        kvstore_pb2.StoredBlock(
            hash=kv_pb2.BlockHash(low=place.hash[0], high=place.hash[1]),
            offset_bytes=place.offset_bytes,
            generation=place.generation,
            checksum=digest_bytes(*place.checksum),
        )
        for place in lease.places
    ]
