"""The four services' processes, wired as their composition roots wire them, on simulated ground."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import cast

import grpc

from crossdock.engine.front import Front
from crossdock.engine.process import EngineConfig
from crossdock.errors import CrossdockError
from crossdock.models.tiny_tokenizer import VOCAB_SIZE_MIN, write_tiny_tokenizer
from crossdock.rpc.server import RpcServer
from crossdock.rpc.surroundings import Surroundings
from crossdock.tokenization import Tokenizer
from services.decode.generation import Generation
from services.decode.servicer import NAME as DECODE_NAME
from services.decode.servicer import STATUS_METHOD, DecodeServicer
from services.decode.servicer import register as register_decode
from services.decode.source_client import Sources
from services.prefill.prefilling import Prefilling
from services.prefill.servicer import NAME as PREFILL_NAME
from services.prefill.servicer import UNGATED, PrefillServicer
from services.prefill.servicer import register as register_prefill
from services.router.fleet import Fleet
from services.router.generation import Inference
from services.router.live import LiveRequests
from services.router.metrics import RouterMetrics
from services.router.poller import Poller
from services.router.prompting import Prompter
from services.router.retry import Retry, RetryBounds
from services.router.servicer import NAME as ROUTER_NAME
from services.router.servicer import UNGATED as ROUTER_UNGATED
from services.router.servicer import InferenceServicer
from services.router.servicer import register as register_router
from services.router.worker_client import GrpcWorkers
from tests.sim.engines import Engines, Pace, SimLauncher
from tests.sim.network import Network
from tests.sim.rpc_client import WINDOW_MESSAGES, Channel, Tap
from tests.sim.rpc_server import Server
from tests.sim.virtual_loop import Process, VirtualLoop

_MODEL = "sim"
_DRAIN_S = 30.0


@dataclass
class Ground:
    """What every process stands on."""

    loop: VirtualLoop
    network: Network
    engines: Engines
    random: Random
    note: Callable[[str], None] = field(default=lambda _: None)

    def surroundings(self, tap: Tap | None = None) -> Surroundings:
        return Surroundings(
            open_channel=lambda address: cast(
                grpc.aio.Channel, Channel(self.network, address, tap)
            ),
            make_server=lambda **options: cast(
                grpc.aio.Server, Server(self.network, WINDOW_MESSAGES, **options)
            ),
            random=self.random,
        )


class Service:
    """One service at one address, over all of its processes: at most one runs at a time.

    `instance_id` is a deployment's choice: the same for every process, or new with each.
    """

    role = ""

    def __init__(self, ground: Ground, name: str, host: str, port: int, *, renamed: bool) -> None:
        self.ground = ground
        self.name = name
        self.host = host
        self.port = port
        self.process: Process | None = None
        self.num_starts = 0
        self._renamed = renamed
        self._serving = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def instance_id(self) -> str:
        return f"{self.name}-{self.num_starts}" if self._renamed else self.name

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def serving(self) -> bool:
        """Started, and not being terminated."""
        return self.alive and self._serving

    def start(self) -> Process:
        assert not self.alive
        self._serving = False
        self.num_starts += 1
        self.process = Process(f"{self.name}#{self.num_starts}", self.host, self.ground.loop)
        self.process.spawn(self._main(self.process))
        return self.process

    async def _main(self, process: Process) -> None:
        try:
            await self._serve()
            self._serving = True
        except CrossdockError as error:  # its process ends with code 1
            self.ground.note(f"{process.name} cannot start: {error}")
            process.kill()

    def terminate(self) -> None:
        """SIGTERM: drains, ends by itself."""
        assert self.process is not None
        assert self._serving
        self._serving = False
        self.process.spawn(self._drain_and_exit(self.process))

    async def _drain_and_exit(self, process: Process) -> None:
        await self._drain()
        process.kill()

    async def _serve(self) -> None:
        raise NotImplementedError

    async def _drain(self) -> None:
        raise NotImplementedError


class EngineService(Service):
    """What prefill and decode share."""

    front: Front

    def __init__(self, ground: Ground, name: str, host: str, port: int, *, renamed: bool) -> None:
        super().__init__(ground, name, host, port, renamed=renamed)
        self.config = EngineConfig(_MODEL, "")
        self.pace = Pace()

    def _make_front(self, ungated: Sequence[str], surroundings: Surroundings) -> Front:
        config = replace(self.config, instance_id=self.instance_id)
        launcher = SimLauncher(self.ground.engines, config, self.pace)
        self.front = Front(self.role, config, launcher, ungated=ungated, surroundings=surroundings)
        return self.front


class PrefillService(EngineService):
    """As services/prefill/__main__.py builds it, without a kvstore."""

    role = "prefill"

    async def _serve(self) -> None:
        front = self._make_front(UNGATED, self.ground.surroundings())
        front.server.add(PREFILL_NAME, register_prefill(PrefillServicer(front, Prefilling(front))))
        await front.start(self.host, self.port)

    async def _drain(self) -> None:
        await self.front.server.drain(_DRAIN_S)
        await self.front.supervisor.stop()


class DecodeService(EngineService):
    """As services/decode/__main__.py builds it."""

    role = "decode"
    sources: Sources

    async def _serve(self) -> None:
        surroundings = self.ground.surroundings()
        front = self._make_front([STATUS_METHOD], surroundings)
        self.sources = Sources(self.instance_id, surroundings)
        servicer = DecodeServicer(front, Generation(front, self.sources))
        front.server.add(DECODE_NAME, register_decode(servicer))
        await front.start(self.host, self.port)

    async def _drain(self) -> None:
        await self.front.server.drain(_DRAIN_S)
        await self.sources.close()
        await self.front.supervisor.stop()


class RouterService(Service):
    """As services/router/__main__.py builds it, without HTTP. One router a tenant, whose salt the
    tap puts into what it sends to workers.
    """

    role = "router"
    fleet: Fleet
    live: LiveRequests

    def connect_to(self, prefill: Sequence[str], decode: Sequence[str], tap: Tap) -> None:
        self._prefill, self._decode, self._tap = prefill, decode, tap

    async def _serve(self) -> None:
        surroundings = self.ground.surroundings(self._tap)
        self._workers = GrpcWorkers(self._prefill, self._decode, surroundings)
        self.fleet = Fleet(self._prefill, self._decode)
        self.live = LiveRequests(64)
        live = self.live
        self._poller = Poller(self.fleet, self._workers, lambda: len(live) > 0)
        metrics = RouterMetrics(self.fleet, lambda: len(live))
        retry = Retry(
            self.fleet, self._workers, self._poller, RetryBounds(), metrics, surroundings.random
        )
        inference = Inference(
            _MODEL, Prompter(_tokenizer(), None), self.fleet, retry, live, metrics
        )
        self._grpc = RpcServer(self.instance_id, ungated=ROUTER_UNGATED, surroundings=surroundings)
        self._grpc.add(ROUTER_NAME, register_router(InferenceServicer(inference)))
        await self._grpc.start(self.host, self.port)
        await self._poller.start()
        await self._grpc.set_serving(True)

    async def _drain(self) -> None:
        await self._grpc.drain(_DRAIN_S)
        await self._grpc.stop()
        await self._poller.stop()
        await self._workers.close()


@cache
def _tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_tokenizer(Path(folder), VOCAB_SIZE_MIN, 2_048)
        return Tokenizer.load(Path(folder))
