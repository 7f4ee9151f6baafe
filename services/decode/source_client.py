"""The prefill instances that hand off to this one, and the pairs with them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from crossdock.api.v1 import prefill_pb2_grpc
from crossdock.engine import limits
from crossdock.engine.client import Engine
from crossdock.engine.pair_client import Callee, Dialed, PairDialer
from crossdock.engine.peers import Pair
from crossdock.errors import stale_epoch
from crossdock.rpc.surroundings import REAL, Surroundings


@dataclass(frozen=True)
class Source:
    """The prefill instance that a request names."""

    instance_id: str
    address: str
    epoch: int


class Sources:
    """Pairs with prefill instances, made at the first request that names one. Requests that name
    the same instance at the same time share one attempt. Used on one event loop.
    """

    def __init__(self, instance_id: str, surroundings: Surroundings = REAL) -> None:
        self._dialer = PairDialer(instance_id, surroundings)
        self._dials: dict[tuple[Engine, Source], asyncio.Task[Dialed]] = {}

    async def ready(self, engine: Engine, source: Source) -> Pair:
        """The pair with that engine, ready for a handoff. Raises why there is none."""
        pair = engine.peers.with_instance(source.instance_id)
        if pair is not None and pair.usable:
            # The peer's front ends the stream of an epoch before it starts the next, so a pair
            # that lives names the present one.
            if pair.remote.epoch != source.epoch:
                raise stale_epoch(
                    f"{source.instance_id} runs epoch {pair.remote.epoch:016x}, the request names "
                    f"{source.epoch:016x}"
                )
        else:
            pair = (await self._dial(engine, source)).pair
        await pair.wait_ready(limits.PAIR_READY_MAX_S)
        return pair

    async def _dial(self, engine: Engine, source: Source) -> Dialed:
        key = (engine, source)
        task = self._dials.get(key)
        if task is None:
            callee = Callee(
                prefill_pb2_grpc.PrefillStub, source.address, source.instance_id, source.epoch
            )
            task = asyncio.create_task(self._dialer.dial(engine, callee))
            self._dials[key] = task
            task.add_done_callback(lambda done: self._dialed(key, done))
        return await asyncio.shield(task)

    def _dialed(self, key: tuple[Engine, Source], task: asyncio.Task[Dialed]) -> None:
        self._dials.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved: those who asked may be gone

    async def close(self) -> None:
        """Ends every pair."""
        for task in list(self._dials.values()):
            task.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)
        await self._dialer.close()
