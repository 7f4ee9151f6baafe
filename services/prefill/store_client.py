"""The kvstore, as the engine of a prefill instance uses it.

The engine asks by events; the answers are commands. Every question is answered, at worst with
"nothing", within the deadline of one call: a store that is down or slow never fails a request.
After a failure the store is left alone for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import structlog

from crossdock import _native as native
from crossdock.api.v1 import kv_pb2, kvstore_pb2, kvstore_pb2_grpc
from crossdock.engine import limits
from crossdock.engine.client import Engine, StoreEvent
from crossdock.engine.pair_client import Callee, Dialed, PairDialer
from crossdock.engine.translation import digest_bytes, digest_words
from crossdock.errors import Code, CrossdockError, unreachable
from crossdock.rpc.status import from_rpc_error
from crossdock.rpc.surroundings import REAL, Surroundings
from services.prefill.circuit import Circuit

_log = structlog.get_logger("services.prefill.store")

# A lookup stands between a request and its first step; the rest is in the background.
_ACQUIRE_S: Final = 0.05
_BACKGROUND_S: Final = 2.0
# Reads and writes under a lease take milliseconds. An expired read lease is harmless, since the
# reader verifies what it read; an expired reservation stays quarantined.
_LEASE_MS: Final = 30_000
_PAUSE_MIN_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
# Codes of a store that is better left alone for a while.
_TROUBLE: Final = frozenset({Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED})
# What leaves a reservation at the store that nobody here knows of, when it is not answered.
_RESERVING: Final = frozenset({"Reserve", "Release"})
_RECONNECT_MIN_S: Final = 0.5
_RECONNECT_MAX_S: Final = 10.0


@dataclass(frozen=True)
class _Leased:
    """Blocks of the store under a lease. Lease 0: it grants none. Peer 0: it could not be asked."""

    peer_id: int = 0
    lease_id: int = 0
    blocks: list[native.StoredBlock] = field(default_factory=list)


class StoreClient:
    """One kvstore for the engines of one instance, one engine at a time. Used on one event loop."""

    def __init__(self, instance_id: str, address: str, surroundings: Surroundings = REAL) -> None:
        self._address = address
        self._dialer = PairDialer(instance_id, surroundings)
        self._circuit = Circuit(pause_min_s=_PAUSE_MIN_S, pause_max_s=_PAUSE_MAX_S)
        self._engine: Engine | None = None
        self._store: Dialed | None = None
        # Of which store each lease is: another store may use the same number.
        self._leases: dict[int, Dialed] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        return self._store is not None and self._store.pair.ready

    def attach(self, engine: Engine) -> None:
        """A new engine serves: its events are answered from now on, its pair is made and kept."""
        self._engine = engine
        engine.on_store_event = lambda event: self._on_event(engine, event)
        self._lose_store()
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = asyncio.create_task(self._keep_connected(engine))

    async def close(self) -> None:
        """Ends the pair; what is in the background is dropped."""
        tasks = [*self._tasks, *([self._connecting] if self._connecting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._dialer.close()

    async def _keep_connected(self, engine: Engine) -> None:
        backoff_s = _RECONNECT_MIN_S
        told = ""
        callee = Callee(kvstore_pb2_grpc.KvStoreStub, self._address, store=True)
        while not engine.down:
            # Connecting again tells the store that nothing of the former pair is in flight.
            for former in [pair for pair in engine.peers if pair.store]:
                engine.peers.disconnect(former, unreachable("connecting again"))
                await former.wait_closed()
            try:
                store = await self._dialer.dial(engine, callee)
                pair = store.pair
                await pair.wait_ready(limits.PAIR_READY_MAX_S)
            except CrossdockError as error:
                # A store that differs or is away for good is told of once, not every few seconds.
                log = _log.debug if error.message == told else _log.warning
                log("store_not_connected", address=self._address, error=error.message)
                told = error.message
            else:
                _log.info("store_connected", address=self._address, transport=pair.transport)
                told = ""
                self._store = store
                self._circuit.succeeded()
                backoff_s = _RECONNECT_MIN_S
                await pair.wait_broken()
                self._lose_store()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _RECONNECT_MAX_S)

    def _on_event(self, engine: Engine, event: StoreEvent) -> None:
        work: Coroutine[Any, Any, None]
        match event:
            case native.StoreLookup():
                work = self._look_up(engine, event)
            case native.StoreOffer():
                work = self._reserve(engine, event)
            case native.StoreReadDone():
                work = self._release(event.lease_id, event.bad)
            case native.StoreWritten():
                work = self._publish(event)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_up(self, engine: Engine, event: native.StoreLookup) -> None:
        request = kvstore_pb2.AcquireRequest(chain=_hashes(event.chain), ttl_ms=_LEASE_MS)
        leased = await self._lease("Acquire", request, _ACQUIRE_S)
        engine.send(
            native.StoreFound(
                sequence_id=event.sequence_id,
                peer_id=leased.peer_id,
                lease_id=leased.lease_id,
                blocks=leased.blocks,
            )
        )

    async def _reserve(self, engine: Engine, event: native.StoreOffer) -> None:
        request = kvstore_pb2.ReserveRequest(hashes=_hashes(event.hashes), ttl_ms=_LEASE_MS)
        leased = await self._lease("Reserve", request, _BACKGROUND_S)
        engine.send(
            native.StorePlaces(
                offer_id=event.offer_id,
                peer_id=leased.peer_id,
                lease_id=leased.lease_id,
                blocks=leased.blocks,
            )
        )

    async def _lease(self, method: str, request: Any, timeout_s: float) -> _Leased:
        """What the store grants; nothing while it cannot be asked."""
        now_s = asyncio.get_running_loop().time()
        store = self._store
        if store is None or not store.pair.ready or not self._circuit.admits(now_s):
            return _Leased()
        request.incarnation = store.pair.incarnation
        reply = await self._call(store, method, request, timeout_s)
        if reply is None or not store.pair.ready:
            return _Leased()
        if reply.lease_id:
            self._leases[reply.lease_id] = store
        blocks = [_stored(block) for block in reply.blocks]
        return _Leased(store.pair.peer_id, reply.lease_id, blocks)

    async def _release(self, lease_id: int, bad: list[int]) -> None:
        """A lease of a store that is lost was released by the end of the pair."""
        store = self._leases.pop(lease_id, None)
        if store is not None:
            await self._call(
                store,
                "Release",
                kvstore_pb2.ReleaseRequest(lease_id=lease_id, bad_blocks=_hashes(bad)),
                _BACKGROUND_S,
            )

    async def _publish(self, event: native.StoreWritten) -> None:
        store = self._leases.get(event.lease_id)
        if store is not None and event.blocks:
            await self._call(
                store,
                "Commit",
                kvstore_pb2.CommitRequest(
                    lease_id=event.lease_id, blocks=[_published(block) for block in event.blocks]
                ),
                _BACKGROUND_S,
            )
        await self._release(event.lease_id, [])

    def _lose_store(self) -> None:
        self._store = None
        self._leases.clear()

    async def _call(self, store: Dialed, method: str, request: Any, timeout_s: float) -> Any:
        """The reply, or None and a line in the log."""
        if not store.pair.ready:  # its channel closes with it
            return None
        try:
            reply = await getattr(store.stub, method)(request, timeout=timeout_s)
        except grpc.RpcError as rpc_error:
            error = from_rpc_error(rpc_error)
            if error.code in _TROUBLE:
                self._circuit.failed(asyncio.get_running_loop().time())
            else:  # it answered, if only with a refusal
                self._circuit.succeeded()
            _log.warning("store_call_failed", call=type(request).__name__, error=error.message)
            if error.code is Code.DEADLINE_EXCEEDED and method in _RESERVING:
                # A reservation that ran out stays in quarantine: the end of the pair frees it.
                assert self._engine is not None, "a store is called for an engine"
                self._engine.peers.disconnect(store.pair, error)
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None  # the pair broke, and its channel was closed under the call
        self._circuit.succeeded()
        return reply


def _hashes(words: list[int]) -> list[kv_pb2.BlockHash]:
    """Pairs of low and high words."""
    return [
        kv_pb2.BlockHash(low=low, high=high)
        for low, high in zip(words[::2], words[1::2], strict=True)
    ]


def _published(block: native.StoredBlock) -> kvstore_pb2.StoredBlock:
    return kvstore_pb2.StoredBlock(
        hash=kv_pb2.BlockHash(low=block.hash_low, high=block.hash_high),
        offset_bytes=block.offset_bytes,
        generation=block.generation,
        checksum=digest_bytes(block.checksum_low, block.checksum_high),
    )


def _stored(block: kvstore_pb2.StoredBlock) -> native.StoredBlock:
    low, high = digest_words(block.checksum)
    return native.StoredBlock(
        hash_low=block.hash.low,
        hash_high=block.hash.high,
        offset_bytes=block.offset_bytes,
        generation=block.generation,
        checksum_low=low,
        checksum_high=high,
    )
