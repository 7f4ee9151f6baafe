"""Processes of the four services, wired as their composition roots wire them."""

from __future__ import annotations

import tempfile
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
from crossdock.models.tiny_tokenizer import VOCAB_SIZE_MIN, write_tiny_tokenizer
from crossdock.rpc.server import RpcServer
from crossdock.rpc.surroundings import Surroundings
from crossdock.tokenization import Tokenizer
from services.decode.generation import Generation
from services.decode.servicer import NAME as DECODE_NAME
from services.decode.servicer import STATUS_METHOD, DecodeServicer
from services.decode.servicer import register as register_decode
from services.decode.source_client import Sources
from services.kvstore.servicer import NAME as KVSTORE_NAME
from services.kvstore.servicer import UNGATED as KVSTORE_UNGATED
from services.kvstore.servicer import KvStoreServicer
from services.kvstore.servicer import register as register_kvstore
from services.kvstore.store import Store
from services.kvstore.tier import Tier
from services.prefill.prefilling import Prefilling
from services.prefill.servicer import NAME as PREFILL_NAME
from services.prefill.servicer import UNGATED, PrefillServicer
from services.prefill.servicer import register as register_prefill
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
    """As services/prefill/__main__.py builds it."""

    role = "prefill"
    kvstore = ""
    store_tap: Tap | None = None
    store: StoreClient | None

    async def _serve(self) -> None:
        front = self._make_front(UNGATED, self.ground.surroundings())
        self.store = None
        if self.kvstore:
            surroundings = self.ground.surroundings(self.store_tap)
            self.store = StoreClient(self.instance_id, self.kvstore, surroundings)
            front.on_engine = self.store.attach
        front.server.add(PREFILL_NAME, register_prefill(PrefillServicer(front, Prefilling(front))))
        await front.start(self.host, self.port)

    async def _drain(self) -> None:
        await self.front.server.drain(_DRAIN_S)
        if self.store is not None:
            await self.store.close()
        await self.front.supervisor.stop()


class _WatchedTier(Tier):
    """Shows the checkers its index, as soon as an engine has decided the size of the slots."""

    segment: Segment
    block_bytes: int

    def admit(self, owner_epoch: int, stride_bytes: int, who: str) -> None:
        is_first = self._index is None
        super().admit(owner_epoch, stride_bytes, who)
        if is_first:
            self.segment.watch(self._require_index(), stride_bytes, self.block_bytes)


class KvStoreService(Service):
    """As services/kvstore/__main__.py builds it. Front and segment are one process."""

    role = "kvstore"
    memory_bytes: int
    transport: str
    block_bytes: int
    store: Store
    memory: Member

    async def _serve(self) -> None:
        surroundings = self.ground.surroundings()
        epoch = surroundings.random.getrandbits(64) | 1
        segment, self.memory = self.ground.engines.add_store(
            epoch, self.transport, self.memory_bytes
        )
        self._server = RpcServer(
            self.instance_id, ungated=KVSTORE_UNGATED, surroundings=surroundings
        )
        gate = self._server.gate
        tier = _WatchedTier(self.memory_bytes, epoch)
        tier.segment, tier.block_bytes = segment, self.block_bytes
        self.store = Store(self.instance_id, epoch, segment, tier, lambda: gate.draining)
        self._server.add(KVSTORE_NAME, register_kvstore(KvStoreServicer(self.store)))
        await self._server.start(self.host, self.port)
        await self._server.set_serving(True)

    async def _drain(self) -> None:
        await self._server.drain(_DRAIN_S)
        self.store.close()

    def stop(self) -> Callable[[], None]:
        front_goes_on = super().stop()
        memory = self.memory
        memory.stop()

        def go_on() -> None:
            memory.resume()
            front_goes_on()

        return go_on


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
