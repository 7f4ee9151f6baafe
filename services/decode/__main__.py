"""The decode service as a process: reads settings, wires, serves, drains."""

from __future__ import annotations

import os
import sys

from crossdock.rpc.native_import import requires_native
from crossdock.rpc.serving import run_service
from crossdock.rpc.settings import ServiceSettings
from crossdock.rpc.surroundings import REAL, Surroundings

with requires_native("decode"):
    from crossdock.engine.front import Front
    from crossdock.engine.link import Launcher
    from crossdock.engine.process import EngineConfig, ProcessLauncher, engine_path
    from crossdock.engine.service import EngineService
    from crossdock.engine.supervisor import SupervisorTimes
    from services.decode.config import DecodeSettings
    from services.decode.generation import Generation
    from services.decode.servicer import NAME, STATUS_METHOD, DecodeServicer, register
    from services.decode.source_client import Sources


class DecodeService(EngineService):
    """The instance's parts."""

    def __init__(
        self,
        settings: ServiceSettings,
        config: EngineConfig,
        launcher: Launcher,
        *,
        times: SupervisorTimes | None = None,
        surroundings: Surroundings = REAL,
    ) -> None:
        front = Front(
            "decode",
            config,
            launcher,
            ungated=[STATUS_METHOD],
            times=times,
            surroundings=surroundings,
        )
        super().__init__(settings, front)
        self.sources = Sources(config.instance_id, surroundings)
        front.server.add(NAME, register(DecodeServicer(front, Generation(front, self.sources))))

    async def close_clients(self) -> None:
        await self.sources.close()


def _build(settings: DecodeSettings, instance_id: str) -> DecodeService:
    config = settings.engine_config(instance_id, store=False)
    times = SupervisorTimes(quarantine_s=settings.quarantine_patience)
    launcher = ProcessLauncher(config, engine_path(os.environ))
    return DecodeService(settings, config, launcher, times=times)


if __name__ == "__main__":
    sys.exit(run_service("decode", DecodeSettings, _build, sys.argv[1:]))
