"""Processes of the four services, as their composition roots make them."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import grpc

from crossdock.engine.front import Front
from crossdock.engine.process import EngineConfig
from crossdock.errors import CrossdockError
from crossdock.rpc.server import RpcServer
from crossdock.rpc.serving import Service as Instance
from crossdock.rpc.settings import ServiceSettings
from crossdock.rpc.surroundings import Surroundings
from crossdock.tokenization import Tokenizer
from services.decode import __main__ as decode
from services.kvstore import __main__ as kvstore
from services.kvstore.store import Store
from services.kvstore.tier import Tier
from services.prefill import __main__ as prefill
from services.prefill.store_client import StoreClient
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
from tests.sim.engines import Engines, Member, Pace, SimLauncher
from tests.sim.network import Network
from tests.sim.rpc_client import WINDOW_MESSAGES, Channel, Tap
from tests.sim.rpc_server import Server
from tests.sim.virtual_loop import Process, VirtualLoop
from tests.tiny_models.tokenizer import VOCAB_SIZE_MIN, write_tiny_tokenizer

if TYPE_CHECKING:
    from tests.sim.crossdock_sim import Segment

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


class Service(ABC):
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

    def stop(self) -> Callable[[], None]:
        """SIGSTOP of the process that runs now; what is returned is its SIGCONT."""
        assert self.process is not None
        self.process.stop()
        return self.process.resume

    def terminate(self) -> None:
        """SIGTERM: drains, ends by itself."""
        assert self.process is not None
        assert self._serving
        self._serving = False
        self.process.spawn(self._drain_and_exit(self.process))

    async def _drain_and_exit(self, process: Process) -> None:
        await self._drain()
        process.kill()

    @abstractmethod
    async def _serve(self) -> None: ...

    @abstractmethod
    async def _drain(self) -> None: ...


class _Worker(Service):
    """A service as its composition root makes it, on simulated ground."""

    instance: Instance

    @property
    def settings(self) -> ServiceSettings:
        return ServiceSettings(host=self.host, port=self.port, drain_timeout=_DRAIN_S)

    async def _serve(self) -> None:
        self.instance = self._make()
        await self.instance.start()

    async def _drain(self) -> None:
        await self.instance.drain()

    @abstractmethod
    def _make(self) -> Instance: ...


class EngineService(_Worker):
    """What prefill and decode share."""

    front: Front

    def __init__(self, ground: Ground, name: str, host: str, port: int, *, renamed: bool) -> None:
        super().__init__(ground, name, host, port, renamed=renamed)
        self.config = EngineConfig(_MODEL, "")
        self.pace = Pace()

    def _start_with(self) -> tuple[EngineConfig, SimLauncher]:
        config = replace(self.config, instance_id=self.instance_id)
        return config, SimLauncher(self.ground.engines, config, self.pace)


class PrefillService(EngineService):
    """Without a kvstore unless it is told of one."""

    role = "prefill"
    kvstore = ""
    store_tap: Tap | None = None
    store: StoreClient | None

    def _make(self) -> Instance:
        surroundings = self.ground.surroundings(self.store_tap)
        config, launcher = self._start_with()
        made = prefill.PrefillService(
            self.settings, config, launcher, self.kvstore, surroundings=surroundings
        )
        self.front, self.store = made.front, made.store
        return made


class DecodeService(EngineService):
    """Continues what a prefill instance hands off."""

    role = "decode"

    def _make(self) -> Instance:
        config, launcher = self._start_with()
        made = decode.DecodeService(
            self.settings, config, launcher, surroundings=self.ground.surroundings()
        )
        self.front = made.front
        return made


class _WatchedTier(Tier):
    """Shows the checkers its index, as soon as an engine has decided the size of the slots."""

    segment: Segment
    block_bytes: int

    def admit(self, owner_epoch: int, stride_bytes: int, who: str) -> None:
        is_first = self._index is None
        super().admit(owner_epoch, stride_bytes, who)
        if is_first:
            self.segment.watch(self._require_index(), stride_bytes, self.block_bytes)


class KvStoreService(_Worker):
    """Front and segment are one process."""

    role = "kvstore"
    memory_bytes: int
    transport: str
    block_bytes: int
    store: Store
    memory: Member

    def _make(self) -> Instance:
        surroundings = self.ground.surroundings()
        epoch = surroundings.random.getrandbits(64) | 1
        segment, self.memory = self.ground.engines.add_store(
            epoch, self.transport, self.memory_bytes
        )
        tier = _WatchedTier(self.memory_bytes, epoch)
        tier.segment, tier.block_bytes = segment, self.block_bytes
        made = kvstore.KvStoreService(
            self.settings, self.instance_id, epoch, segment, tier, surroundings
        )
        self.store = made.store
        return made

    def stop(self) -> Callable[[], None]:
        front_goes_on = super().stop()
        memory = self.memory
        memory.stop()

        def go_on() -> None:
            memory.resume()
            front_goes_on()

        return go_on


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
