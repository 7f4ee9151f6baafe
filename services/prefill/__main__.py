"""The prefill service as a process: reads settings, wires, serves, drains."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from prometheus_client.registry import Collector

from crossdock.rpc.native_import import requires_native
from crossdock.rpc.serving import run_service

with requires_native("prefill"):
    from crossdock.engine.front import Front
    from crossdock.engine.metrics import collectors_of
    from crossdock.engine.process import ProcessLauncher, engine_path
    from services.prefill.config import PrefillSettings
    from services.prefill.prefilling import Prefilling
    from services.prefill.servicer import NAME, UNGATED, PrefillServicer, register
    from services.prefill.store_client import StoreClient


class PrefillService:
    """The instance's parts, and the order in which they start and end."""

    def __init__(self, settings: PrefillSettings, instance_id: str) -> None:
        self._settings = settings
        config = settings.engine_config(instance_id, store=bool(settings.kvstore))
        launcher = ProcessLauncher(config, engine_path(os.environ))
        self._front = Front("prefill", config, launcher, ungated=UNGATED)
        self._store = StoreClient(instance_id, settings.kvstore) if settings.kvstore else None
        if self._store is not None:
            self._front.on_engine = self._store.attach
        servicer = PrefillServicer(self._front, Prefilling(self._front))
        self._front.server.add(NAME, register(servicer))

    async def start(self) -> Mapping[str, str]:
        return {"address": await self._front.start(self._settings.host, self._settings.port)}

    def collectors(self) -> Iterable[Collector]:
        return collectors_of(self._front)

    async def drain(self) -> None:
        await self._front.server.drain(self._settings.drain_timeout)
        if self._store is not None:
            await self._store.close()
        await self._front.supervisor.stop()


if __name__ == "__main__":
    sys.exit(run_service("prefill", PrefillSettings, PrefillService, sys.argv[1:]))
