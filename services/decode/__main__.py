"""The decode service as a process: reads settings, wires, serves, drains."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from prometheus_client.registry import Collector

from crossdock.rpc.native_import import requires_native
from crossdock.rpc.serving import run_service

with requires_native("decode"):
    from crossdock.engine.front import Front
    from crossdock.engine.metrics import collectors_of
    from crossdock.engine.process import ProcessLauncher, engine_path
    from services.decode.config import DecodeSettings
    from services.decode.generation import Generation
    from services.decode.servicer import NAME, STATUS_METHOD, DecodeServicer, register
    from services.decode.source_client import Sources


class DecodeService:
    """The instance's parts, and the order in which they start and end."""

    def __init__(self, settings: DecodeSettings, instance_id: str) -> None:
        self._settings = settings
        config = settings.engine_config(instance_id, store=False)
        launcher = ProcessLauncher(config, engine_path(os.environ))
        self._front = Front("decode", config, launcher, ungated=[STATUS_METHOD])
        self._sources = Sources(instance_id)
        servicer = DecodeServicer(self._front, Generation(self._front, self._sources))
        self._front.server.add(NAME, register(servicer))

    async def start(self) -> Mapping[str, str]:
        return {"address": await self._front.start(self._settings.host, self._settings.port)}

    def collectors(self) -> Iterable[Collector]:
        return collectors_of(self._front)

    async def drain(self) -> None:
        await self._front.server.drain(self._settings.drain_timeout)
        await self._sources.close()
        await self._front.supervisor.stop()


if __name__ == "__main__":
    sys.exit(run_service("decode", DecodeSettings, DecodeService, sys.argv[1:]))
