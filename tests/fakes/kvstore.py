"""A kvstore service around a segment in Python, and a segment that does what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from crossdock import _native as native
from crossdock.api.v1 import kvstore_pb2_grpc
from crossdock.rpc.channel import open_channel
from crossdock.rpc.settings import ServiceSettings
from services.kvstore.__main__ import KvStoreService
from services.kvstore.store import Store
from services.kvstore.tier import Tier
from tests.fakes.engine import event

MEMORY_BYTES = 8 * 4_096


class FakeSegment:
    """Implements Segment. Peers are ready, and closed with proof, unless told otherwise."""

    def __init__(self) -> None:
        self.connected: list[tuple[int, int, bytes]] = []
        self.disconnected: list[int] = []
        self.automatic = True
        self.writes_stop = True
        self._events: list[Any] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def descriptor(self) -> bytes:
        return b"segment"

    @property
    def event_fd(self) -> int:
        return self._fd

    def connect(self, *, peer_id: int, incarnation: int, descriptor: bytes) -> None:
        if descriptor == b"bad":
            raise native.StatusError(3, "endpoint descriptor is cut short")
        self.connected.append((peer_id, incarnation, descriptor))
        if self.automatic:
            self.emit(
                event(native.PeerReady, peer_id=peer_id, transport="shm", not_shared="", staged="")
            )

    def disconnect(self, peer_id: int) -> None:
        self.disconnected.append(peer_id)
        if self.automatic:
            self.closed(peer_id, writes_stopped=self.writes_stop)

    def closed(self, peer_id: int, *, writes_stopped: bool) -> None:
        self.emit(event(native.PeerClosed, peer_id=peer_id, writes_stopped=writes_stopped))

    def broken(self, peer_id: int) -> None:
        self.emit(
            event(
                native.PeerBroken,
                peer_id=peer_id,
                code=14,
                message="connection reset",
                process_gone=False,
            )
        )

    def emit(self, *events: Any) -> None:
        self._events.extend(events)
        os.eventfd_write(self._fd, 1)

    def drain(self) -> list[Any]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        events, self._events = self._events, []
        return events


@dataclass
class RunningStore:
    """A store that serves, and a stub to it."""

    store: Store
    segment: FakeSegment
    address: str
    stub: kvstore_pb2_grpc.KvStoreAsyncStub
    channel: grpc.aio.Channel = field(repr=False)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what is awaited has no event
                await asyncio.sleep(0.001)

    def slots(self) -> tuple[int, int, int, int]:
        """Free, being written, published, quarantined."""
        statistics = self.store.tier.statistics()
        assert statistics is not None
        return (
            statistics.num_free,
            statistics.num_writing,
            statistics.num_published,
            statistics.num_quarantined,
        )


@asynccontextmanager
async def running_store(port: int = 0, epoch: int = 99) -> AsyncIterator[RunningStore]:
    segment = FakeSegment()
    settings = ServiceSettings(port=port, drain_timeout=5)
    tier = Tier(MEMORY_BYTES, epoch)
    service = KvStoreService(settings, "kvstore-1", epoch, segment, tier)
    address = (await service.start())["address"]
    async with open_channel(address) as channel:
        stub = kvstore_pb2_grpc.KvStoreStub(channel)
        yield RunningStore(service.store, segment, address, stub, channel)
    await service.drain()
