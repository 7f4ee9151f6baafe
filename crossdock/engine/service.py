"""A service with an engine, as its process drives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from crossdock.engine.front import Front
from crossdock.engine.translation import status_of
from crossdock.fabric.counters import FabricCollector
from crossdock.rpc.settings import ServiceSettings
from crossdock.telemetry.instance import InstanceCollector

# No process has it, so that nothing is exported while there is no engine.
_NO_PID = "none"


class EngineService:
    """Implements rpc.serving.Service. A service adds what it registers and what it calls."""

    def __init__(self, settings: ServiceSettings, front: Front) -> None:
        self.front = front
        self._settings = settings

    async def start(self) -> Mapping[str, str]:
        return {"address": await self.front.start(self._settings.host, self._settings.port)}

    def collectors(self) -> Iterable[Collector]:
        """The status of the instance, what its engine process uses, and the NICs of the host."""
        return [
            InstanceCollector(lambda: status_of(self.front)),
            ProcessCollector(namespace="crossdock_engine", pid=self._engine_pid, registry=None),
            FabricCollector(),
        ]

    async def drain(self) -> None:
        await self.front.server.drain(self._settings.drain_timeout)
        await self.close_clients()
        await self.front.supervisor.stop()

    async def close_clients(self) -> None:
        """Ends the calls to other services; the requests that need them are over."""

    def _engine_pid(self) -> int | str:
        engine = self.front.supervisor.current_or_none()
        return engine.pid if engine is not None else _NO_PID
