"""What prefill and decode instances share: a gRPC server around a supervised engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from crossdock.engine.client import Engine
from crossdock.engine.link import Launcher
from crossdock.engine.live import LiveRequests
from crossdock.engine.process import EngineConfig
from crossdock.engine.supervisor import EngineSupervisor, SupervisorTimes
from crossdock.rpc.server import RpcServer
from crossdock.rpc.surroundings import REAL, Surroundings


class Front:
    """Identity, server, engine and live requests of one instance. Used on one event loop.

    Serves while an engine does; health follows. `on_engine` is told of every new engine before
    any request reaches it.
    """

    def __init__(
        self,
        role: str,
        config: EngineConfig,
        launcher: Launcher,
        *,
        ungated: Iterable[str] = (),
        times: SupervisorTimes | None = None,
        surroundings: Surroundings = REAL,
    ) -> None:
        self.role = role
        self.config = config
        self.live = LiveRequests()
        self.server = RpcServer(config.instance_id, ungated=ungated, surroundings=surroundings)
        self.on_engine: Callable[[Engine], None] | None = None
        self.supervisor = EngineSupervisor(
            launcher, on_up=self._engine_up, on_down=self._engine_down, times=times
        )

    @property
    def instance_id(self) -> str:
        return self.config.instance_id

    async def start(self, host: str, port: int) -> str:
        """Listens first, so that a port in use costs no model load; returns the address."""
        bound = await self.server.start(host, port)
        await self.supervisor.start()
        return f"{host}:{bound}"

    async def _engine_up(self, engine: Engine) -> None:
        if self.on_engine is not None:
            self.on_engine(engine)
        await self.server.set_serving(True)

    async def _engine_down(self) -> None:
        await self.server.set_serving(False)
