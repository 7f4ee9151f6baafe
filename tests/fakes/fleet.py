"""Prefill and decode fronts on port 0, around engines in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from crossdock.api.v1 import decode_pb2_grpc, prefill_pb2_grpc
from crossdock.engine.front import Front
from crossdock.engine.process import EngineConfig
from crossdock.engine.supervisor import SupervisorTimes
from crossdock.rpc.channel import open_channel
from services.decode.generation import Generation
from services.decode.servicer import NAME as DECODE_NAME
from services.decode.servicer import STATUS_METHOD, DecodeServicer
from services.decode.servicer import register as register_decode
from services.decode.source_client import Source, Sources
from services.prefill.prefilling import Prefilling
from services.prefill.servicer import NAME as PREFILL_NAME
from services.prefill.servicer import UNGATED, PrefillServicer
from services.prefill.servicer import register as register_prefill
from tests.fakes.engine import FakeEngine, FakeLauncher

TIMES = SupervisorTimes(start_max_s=10, backoff_min_s=0.01, backoff_max_s=0.05)


def epochs(*numbers: int) -> FakeLauncher:
    """Engines with these epochs, one after the other."""
    return FakeLauncher(lambda number: FakeEngine(numbers[number - 1]))


@dataclass
class Instance:
    """A front that serves, its engines, and a channel to it."""

    front: Front
    launcher: FakeLauncher
    address: str
    channel: grpc.aio.Channel
    sources: Sources | None = None

    @property
    def engine(self) -> FakeEngine:
        return self.launcher.last

    @property
    def serving(self) -> bool:
        return self.front.supervisor.current_or_none() is not None

    @property
    def decode(self) -> decode_pb2_grpc.DecodeAsyncStub:
        return decode_pb2_grpc.DecodeStub(self.channel)

    @property
    def prefill(self) -> prefill_pb2_grpc.PrefillAsyncStub:
        return prefill_pb2_grpc.PrefillStub(self.channel)

    @property
    def source(self) -> Source:
        return Source(self.front.instance_id, self.address, self.engine.epoch)


def _front(role: str, instance_id: str, launcher: FakeLauncher, ungated: Sequence[str]) -> Front:
    config = EngineConfig(model_directory="/models/tiny", instance_id=instance_id)
    return Front(role, config, launcher, ungated=ungated, times=TIMES)


@asynccontextmanager
async def _serving(
    front: Front, launcher: FakeLauncher, sources: Sources | None = None
) -> AsyncIterator[Instance]:
    address = await front.start("127.0.0.1", 0)
    async with open_channel(address) as channel:
        yield Instance(front, launcher, address, channel, sources)
    if sources is not None:
        await sources.close()
    await front.server.drain(5)
    await front.supervisor.stop()


@asynccontextmanager
async def decode_instance(launcher: FakeLauncher) -> AsyncIterator[Instance]:
    front = _front("decode", "decode-1", launcher, [STATUS_METHOD])
    sources = Sources("decode-1")
    servicer = DecodeServicer(front, Generation(front, sources))
    front.server.add(DECODE_NAME, register_decode(servicer))
    async with _serving(front, launcher, sources) as instance:
        yield instance


@asynccontextmanager
async def prefill_instance(launcher: FakeLauncher) -> AsyncIterator[Instance]:
    front = _front("prefill", "prefill-1", launcher, UNGATED)
    front.server.add(PREFILL_NAME, register_prefill(PrefillServicer(front, Prefilling(front))))
    async with _serving(front, launcher) as instance:
        yield instance
