"""The kvstore, as the engine of a prefill instance uses it.

The engine asks by events; the answers are commands. Every question is answered, at worst with
"nothing", within the deadline of one call: a store that is down or slow never fails a request.
After a failure the store is left alone for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import grpc
import structlog

from crossdock import _native as native
from crossdock.api.v1 import kv_pb2, kvstore_pb2, kvstore_pb2_grpc
from crossdock.engine import limits
from crossdock.engine.client import Engine, StoreEvent
from crossdock.engine.pair_client import Callee, PairDialer
from crossdock.engine.peers import Pair
from crossdock.engine.translation import digest_bytes, digest_words
from crossdock.errors import Code, CrossdockError, unreachable
from crossdock.rpc.channel import open_channel
from crossdock.rpc.status import from_rpc_error
from services.prefill.circuit import Circuit

_log = structlog.get_logger("services.prefill.store")

Reply = TypeVar("Reply")

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
_RECONNECT_MIN_S: Final = 0.5
_RECONNECT_MAX_S: Final = 10.0


class StoreClient:
    """One kvstore for the engines of one instance, one engine at a time. Used on one event loop."""

    def __init__(self, instance_id: str, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._stub = kvstore_pb2_grpc.KvStoreStub(self._channel)
        self._dialer = PairDialer(instance_id)
        self._circuit = Circuit(pause_min_s=_PAUSE_MIN_S, pause_max_s=_PAUSE_MAX_S)
        self._engine: Engine | None = None
        self._pair: Pair | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        return self._pair is not None and self._pair.ready

    def attach(self, engine: Engine) -> None:
        """A new engine serves: its events are answered from now on, its pair is made and kept."""
        engine.on_store_event = lambda event: self._on_event(engine, event)
        self._engine = engine
        self._pair = None
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
        await self._channel.close(None)

    async def _keep_connected(self, engine: Engine) -> None:
        backoff_s = _RECONNECT_MIN_S
        callee = Callee(self._stub.Connect, self._address, store=True)
        while not engine.down:
            # Connecting again tells the store that nothing of the former pair is in flight.
            for former in [pair for pair in engine.peers if pair.store]:
                engine.peers.disconnect(former, unreachable("connecting again"))
                await former.wait_closed()
            try:
                pair = await self._dialer.dial(engine, callee)
                await pair.wait_ready(limits.PAIR_READY_MAX_S)
            except CrossdockError as error:
                _log.warning("store_not_connected", address=self._address, error=error.message)
            else:
                _log.info("store_connected", address=self._address, transport=pair.transport)
                self._pair = pair
                backoff_s = _RECONNECT_MIN_S
                await pair.wait_broken()
                self._pair = None
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
        found = native.StoreFound(sequence_id=event.sequence_id, peer_id=0, lease_id=0, blocks=[])
        pair = self._usable_pair()
        if pair is not None:
            reply = await self._call(
                self._stub.Acquire,
                kvstore_pb2.AcquireRequest(
                    owner_epoch=engine.epoch, chain=_hashes(event.chain), ttl_ms=_LEASE_MS
                ),
                _ACQUIRE_S,
            )
            if reply is not None and reply.lease_id and pair.ready:
                found = native.StoreFound(
                    sequence_id=event.sequence_id,
                    peer_id=pair.peer_id,
                    lease_id=reply.lease_id,
                    blocks=[_stored(block) for block in reply.blocks],
                )
        engine.send(found)

    async def _reserve(self, engine: Engine, event: native.StoreOffer) -> None:
        places = native.StorePlaces(offer_id=event.offer_id, peer_id=0, lease_id=0, blocks=[])
        pair = self._usable_pair()
        if pair is not None:
            reply = await self._call(
                self._stub.Reserve,
                kvstore_pb2.ReserveRequest(
                    owner_epoch=engine.epoch, hashes=_hashes(event.hashes), ttl_ms=_LEASE_MS
                ),
                _BACKGROUND_S,
            )
            if reply is not None and reply.lease_id and pair.ready:
                places = native.StorePlaces(
                    offer_id=event.offer_id,
                    peer_id=pair.peer_id,
                    lease_id=reply.lease_id,
                    blocks=[_stored(block) for block in reply.blocks],
                )
        engine.send(places)

    async def _release(self, lease_id: int, bad: list[int]) -> None:
        await self._call(
            self._stub.Release,
            kvstore_pb2.ReleaseRequest(lease_id=lease_id, bad_blocks=_hashes(bad)),
            _BACKGROUND_S,
        )

    async def _publish(self, event: native.StoreWritten) -> None:
        if event.blocks:
            blocks = [
                kvstore_pb2.StoredBlock(
                    hash=kv_pb2.BlockHash(low=block.hash_low, high=block.hash_high),
                    offset_bytes=block.offset_bytes,
                    generation=block.generation,
                    checksum=digest_bytes(block.checksum_low, block.checksum_high),
                )
                for block in event.blocks
            ]
            await self._call(
                self._stub.Commit,
                kvstore_pb2.CommitRequest(lease_id=event.lease_id, blocks=blocks),
                _BACKGROUND_S,
            )
        await self._release(event.lease_id, [])

    def _usable_pair(self) -> Pair | None:
        pair = self._pair
        now_s = asyncio.get_running_loop().time()
        if pair is None or not pair.ready or not self._circuit.admits(now_s):
            return None
        return pair

    async def _call(
        self,
        method: Callable[..., Awaitable[Reply]],
        request: Any,
        timeout_s: float,
    ) -> Reply | None:
        """The reply, or nothing and a line in the log."""
        try:
            reply = await method(request, timeout=timeout_s)
        except grpc.RpcError as rpc_error:
            error = from_rpc_error(rpc_error)
            if error.code in _TROUBLE:
                self._circuit.failed(asyncio.get_running_loop().time())
            else:  # it answered, if only with a refusal
                self._circuit.succeeded()
            _log.warning("store_call_failed", call=type(request).__name__, error=error.message)
            return None
        self._circuit.succeeded()
        return reply


def _hashes(words: list[int]) -> list[kv_pb2.BlockHash]:
    """Pairs of low and high words."""
    return [
        kv_pb2.BlockHash(low=low, high=high)
        for low, high in zip(words[::2], words[1::2], strict=True)
    ]


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
