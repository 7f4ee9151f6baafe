"""The prefill service as a process: reads settings, wires, serves, drains."""

from __future__ import annotations

import os
import sys

from crossdock.rpc.native_import import requires_native
from crossdock.rpc.serving import run_service
from crossdock.rpc.settings import ServiceSettings
from crossdock.rpc.surroundings import REAL, Surroundings

with requires_native("prefill"):
    from crossdock.engine.front import Front
    from crossdock.engine.link import Launcher
    from crossdock.engine.process import EngineConfig, ProcessLauncher, engine_path
    from crossdock.engine.service import EngineService
    from crossdock.engine.supervisor import SupervisorTimes
    from services.prefill.config import PrefillSettings
    from services.prefill.prefilling import Prefilling
    from services.prefill.servicer import NAME, UNGATED, PrefillServicer, register
    from services.prefill.store_client import StoreClient


class PrefillService(EngineService):
    """The instance's parts. Without `store_address` there is no kvstore."""

    def __init__(
        self,
        settings: ServiceSettings,
        config: EngineConfig,
        launcher: Launcher,
        store_address: str = "",
        *,
        times: SupervisorTimes | None = None,
        surroundings: Surroundings = REAL,
    ) -> None:
        front = Front(
            "prefill", config, launcher, ungated=UNGATED, times=times, surroundings=surroundings
        )
        super().__init__(settings, front)
        self.store: StoreClient | None = None
        if store_address:
            self.store = StoreClient(config.instance_id, store_address, surroundings)
            front.on_engine = self.store.attach
        front.server.add(NAME, register(PrefillServicer(front, Prefilling(front))))

    async def close_clients(self) -> None:
        if self.store is not None:
            await self.store.close()


def _build(settings: PrefillSettings, instance_id: str) -> PrefillService:
    config = settings.engine_config(instance_id, store=bool(settings.kvstore))
    launcher = ProcessLauncher(config, engine_path(os.environ))
    return PrefillService(settings, config, launcher, settings.kvstore)


if __name__ == "__main__":
    sys.exit(run_service("prefill", PrefillSettings, _build, sys.argv[1:]))
