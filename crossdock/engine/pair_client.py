"""The caller's side of a pair: opens `Connect`, makes the pair, and ties the two together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import structlog

from crossdock import _native as native
from crossdock.api.v1 import kv_pb2
from crossdock.engine import limits
from crossdock.engine.client import Engine
from crossdock.engine.peers import MAC_KEY_BYTES, Pair, PairTerms, Remote
from crossdock.engine.translation import endpoint_of, remote_of
from crossdock.errors import CrossdockError, stale_epoch, unreachable
from crossdock.rpc.status import from_rpc_error
from crossdock.rpc.surroundings import REAL, Surroundings

_log = structlog.get_logger("crossdock.engine")

# The stub of a service that has `Connect`, made on a channel.
StubFactory: TypeAlias = Callable[[grpc.aio.Channel], Any]


@dataclass(frozen=True)
class Callee:
    """Whom to pair with. `instance_id` and `epoch` are checked against the answer when given."""

    make_stub: StubFactory
    address: str
    instance_id: str | None = None
    epoch: int | None = None
    store: bool = False


@dataclass(frozen=True)
class Dialed:
    """A pair, and a stub to the other side that may be used until the pair is broken."""

    pair: Pair
    stub: Any


class PairDialer:
    """Makes pairs for a service and watches over their streams. Used on one event loop."""

    def __init__(self, instance_id: str, surroundings: Surroundings = REAL) -> None:
        self._instance_id = instance_id
        self._surroundings = surroundings
        # A dict, so that pairs end in the order in which they were made.
        self._watches: dict[asyncio.Task[None], None] = {}

    async def dial(self, engine: Engine, callee: Callee) -> Dialed:
        """A pair that is CONNECTING in our engine; wait for it to be ready. Raises why not."""
        if callee.instance_id is not None:
            await engine.peers.wait_gone(callee.instance_id, unreachable("connecting again"))
        random = self._surroundings.random
        terms = PairTerms(
            incarnation=random.getrandbits(64) | 1, mac_key=random.randbytes(MAC_KEY_BYTES)
        )
        # The pair's own: it ends with it.
        channel = self._surroundings.open_channel(callee.address)
        stub = callee.make_stub(channel)
        call = stub.Connect(
            kv_pb2.ConnectRequest(
                endpoint=endpoint_of(engine, self._instance_id),
                incarnation=terms.incarnation,
                mac_key=terms.mac_key,
            )
        )
        try:
            remote = _check_answer(callee, await _first_answer(call, callee.address))
            again = unreachable(f"{remote.instance_id} is paired again")
            await engine.peers.wait_gone(remote.instance_id, again)
            pair = engine.peers.connect(remote, terms, store=callee.store)
        except BaseException:
            call.cancel()
            await channel.close(None)
            raise
        watch = asyncio.create_task(_watch(engine, pair, call, channel))
        self._watches[watch] = None
        watch.add_done_callback(self._watches.pop)
        await asyncio.sleep(0)  # a task that is cancelled before its first step would end nothing
        return Dialed(pair, stub)

    async def close(self) -> None:
        """Ends every stream, and with it every pair."""
        for watch in list(self._watches):
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)


async def _first_answer(call: Any, address: str) -> kv_pb2.ConnectResponse:
    try:
        async with asyncio.timeout(limits.PAIR_READY_MAX_S):
            answer = await call.read()
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
    except TimeoutError:
        raise unreachable(
            f"{address} did not answer Connect within {limits.PAIR_READY_MAX_S:g} s"
        ) from None
    if not isinstance(answer, kv_pb2.ConnectResponse):
        raise unreachable(f"{address} ended Connect without an answer")
    return answer


def _check_answer(callee: Callee, answer: kv_pb2.ConnectResponse) -> Remote:
    remote = remote_of(answer.endpoint)
    if callee.instance_id is not None and remote.instance_id != callee.instance_id:
        raise stale_epoch(f"{callee.address} is {remote.instance_id} now, not {callee.instance_id}")
    if callee.epoch is not None and remote.epoch != callee.epoch:
        raise stale_epoch(
            f"{remote.instance_id} runs epoch {remote.epoch:016x}, the request names "
            f"{callee.epoch:016x}: its engine has restarted"
        )
    return remote


async def _watch(engine: Engine, pair: Pair, call: Any, channel: grpc.aio.Channel) -> None:
    """Ends stream and pair when either ends."""
    end = asyncio.create_task(_end_of(call))
    broken = asyncio.create_task(pair.wait_broken())
    try:
        await asyncio.wait({end, broken}, return_when=asyncio.FIRST_COMPLETED)
        error = end.result() if end.done() and not broken.done() else pair.failure()
    except asyncio.CancelledError:
        error = unreachable("this service ends")
        raise
    finally:
        end.cancel()
        broken.cancel()
        call.cancel()
        engine.peers.disconnect(pair, error)
        if not pair.store:
            engine.send(native.PeerLost(epoch=pair.remote.epoch))
        _log.info("pair_ended", peer=pair.remote.instance_id, error=error.message)
        await channel.close(None)


async def _end_of(call: Any) -> CrossdockError:
    try:
        while isinstance(await call.read(), kv_pb2.ConnectResponse):
            pass
    except grpc.RpcError as error:
        return from_rpc_error(error)
    return unreachable("the peer ended the pair")
