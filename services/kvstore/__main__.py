"""The kvstore as a process: reads settings, wires, serves, drains."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Mapping

import structlog
from prometheus_client.registry import Collector

from crossdock.errors import Code, CrossdockError, Reason
from crossdock.fabric.counters import FabricCollector
from crossdock.rpc.native_import import requires_native
from crossdock.rpc.server import RpcServer
from crossdock.rpc.serving import run_service
from crossdock.rpc.settings import ServiceSettings
from crossdock.rpc.surroundings import REAL, Surroundings
from services.kvstore.config import KvStoreSettings

with requires_native("kvstore"):
    from crossdock import _native as native
    from crossdock.telemetry.instance import InstanceCollector
    from services.kvstore.pairs import Segment
    from services.kvstore.servicer import NAME, UNGATED, KvStoreServicer, register, status_of
    from services.kvstore.store import Store
    from services.kvstore.tier import Tier

_log = structlog.get_logger("services.kvstore")


class KvStoreService:
    """The instance's parts, and the order in which they start and end."""

    def __init__(
        self,
        settings: ServiceSettings,
        instance_id: str,
        epoch: int,
        segment: Segment,
        tier: Tier,
        surroundings: Surroundings = REAL,
    ) -> None:
        self._settings = settings
        self._server = RpcServer(instance_id, ungated=UNGATED, surroundings=surroundings)
        gate = self._server.gate
        self.store = Store(instance_id, epoch, segment, tier, lambda: gate.draining)
        self._server.add(NAME, register(KvStoreServicer(self.store)))

    async def start(self) -> Mapping[str, str]:
        host = self._settings.host
        port = await self._server.start(host, self._settings.port)
        await self._server.set_serving(True)
        return {"address": f"{host}:{port}"}

    def collectors(self) -> Iterable[Collector]:
        return [InstanceCollector(lambda: status_of(self.store)), FabricCollector()]

    async def drain(self) -> None:
        await self._server.drain(self._settings.drain_timeout)
        self.store.close()


def _segment(settings: KvStoreSettings, memory_bytes: int, epoch: int) -> native.Segment:
    rdma = settings.choose_rdma()
    try:
        segment = native.Segment(
            transport=settings.transport,
            segment_bytes=memory_bytes,
            epoch=epoch,
            huge_pages=settings.huge_pages,
            bind_interface=settings.bind_interface,
            rdma_port=(rdma.device, rdma.gid_index),
        )
    except native.StatusError as error:
        code, message = error.args
        raise CrossdockError(Code(code), message, Reason.NOT_READY) from error
    if segment.staged:
        _log.warning("segment_staged", reason=segment.staged)
    return segment


def _build(settings: KvStoreSettings, instance_id: str) -> KvStoreService:
    epoch = secrets.randbits(64) | 1
    memory_bytes = int(settings.memory)
    segment = _segment(settings, memory_bytes, epoch)
    return KvStoreService(settings, instance_id, epoch, segment, Tier(memory_bytes, epoch))


if __name__ == "__main__":
    sys.exit(run_service("kvstore", KvStoreSettings, _build, sys.argv[1:]))
