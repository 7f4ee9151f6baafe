"""A router on its own ports, in this event loop, before scripted instances."""

from __future__ import annotations

import asyncio
import string
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from crossdock.api.v1 import inference_pb2, inference_pb2_grpc
from crossdock.rpc.channel import open_channel
from crossdock.tokenization import Tokenizer
from services.router.__main__ import Router
from services.router.config import RouterSettings
from tests.integration.router.fakes import LETTERS, WAIT_S, Fabric, FakeDecode, FakePrefill
from tests.tiny_models.directory import TinyModel, write_tiny_model


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", TinyModel())
    tokenizer = Tokenizer.load(directory)
    LETTERS[:] = [tokenizer.encode(letter)[0] for letter in string.ascii_lowercase]
    return directory


@pytest.fixture(scope="session")
def tokenizer(model_directory: Path) -> Tokenizer:
    return Tokenizer.load(model_directory)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what must come, bounded."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 -- conditions have no event
            await asyncio.sleep(0.005)


@dataclass
class World:
    """The router and its instances, and how a caller reaches it."""

    router: Router
    fabric: Fabric
    prefill: list[FakePrefill]
    decode: list[FakeDecode]
    stub: Any
    http: httpx.AsyncClient
    channel: grpc.aio.Channel
    address: str
    http_address: str

    @property
    def fakes(self) -> list[FakePrefill | FakeDecode]:
        return [*self.prefill, *self.decode]

    def is_quiet(self) -> bool:
        return (
            self.router.fleet.in_flight_tokens() == 0
            and len(self.router.live) == 0
            and all(fake.instance.num_live == 0 for fake in self.fakes)
        )

    async def assert_drained(self) -> None:
        """Nothing is in flight: not here, and not at an instance."""
        await until(self.is_quiet)

    async def generate(self, **fields: Any) -> list[inference_pb2.GenerateResponse]:
        request = inference_pb2.GenerateRequest(**fields)
        return [response async for response in self.stub.Generate(request, timeout=WAIT_S)]


@pytest.fixture
async def make_world(model_directory: Path) -> AsyncIterator[Callable[..., Any]]:
    worlds: list[World] = []

    async def make(num_prefill: int = 1, num_decode: int = 1, **settings: Any) -> World:
        fabric = Fabric()
        prefill = [FakePrefill(fabric, f"prefill-{index}") for index in range(num_prefill)]
        decode = [FakeDecode(fabric, f"decode-{index}") for index in range(num_decode)]
        fakes: list[FakePrefill | FakeDecode] = [*prefill, *decode]
        for fake in fakes:
            await fake.start()
        router = Router(
            RouterSettings(
                model=str(model_directory),
                prefill=[fake.instance.address for fake in prefill],
                decode=[fake.instance.address for fake in decode],
                **settings,
            ),
            "router-under-test",
            report_interval_s=0.1,
        )
        addresses = await router.start()
        channel = open_channel(addresses["address"])
        world = World(
            router=router,
            fabric=fabric,
            prefill=prefill,
            decode=decode,
            stub=inference_pb2_grpc.InferenceStub(channel),
            http=httpx.AsyncClient(base_url=f"http://{addresses['http_address']}", timeout=WAIT_S),
            channel=channel,
            address=addresses["address"],
            http_address=addresses["http_address"],
        )
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        await world.http.aclose()
        await world.channel.close(None)
        await world.router.drain()
        for fake in world.fakes:
            await fake.instance.kill()


@pytest.fixture
async def world(make_world: Callable[..., Any]) -> World:
    made = await make_world()
    assert isinstance(made, World)
    return made
