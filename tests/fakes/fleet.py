"""Prefill and decode fronts on port 0, around engines in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from crossdock.api.v1 import decode_pb2_grpc, prefill_pb2_grpc
from crossdock.engine.front import Front
from crossdock.engine.process import EngineConfig
from crossdock.engine.service import EngineService
from crossdock.engine.supervisor import SupervisorTimes
from crossdock.rpc.channel import open_channel
from crossdock.rpc.settings import ServiceSettings
from services.decode.__main__ import DecodeService
from services.decode.source_client import Source, Sources
from services.prefill.__main__ import PrefillService
from tests.fakes.engine import FakeEngine, FakeLauncher

SETTINGS = ServiceSettings(drain_timeout=5)
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


def _config(instance_id: str) -> EngineConfig:
    return EngineConfig(model_directory="/models/tiny", instance_id=instance_id)


@asynccontextmanager
async def _serving(service: EngineService, launcher: FakeLauncher) -> AsyncIterator[Instance]:
    address = (await service.start())["address"]
    async with open_channel(address) as channel:
        yield Instance(service.front, launcher, address, channel)
    await service.drain()


@asynccontextmanager
async def decode_instance(launcher: FakeLauncher) -> AsyncIterator[Instance]:
    service = DecodeService(SETTINGS, _config("decode-1"), launcher, times=TIMES)
    async with _serving(service, launcher) as instance:
        instance.sources = service.sources
        yield instance


@asynccontextmanager
async def prefill_instance(launcher: FakeLauncher) -> AsyncIterator[Instance]:
    service = PrefillService(SETTINGS, _config("prefill-1"), launcher, times=TIMES)
    async with _serving(service, launcher) as instance:
        yield instance
