"""A gRPC server as every service runs it: health, reflection, limits, statuses, draining."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc import limits
from crossdock.rpc.gate import CallGate
from crossdock.rpc.interceptor import ServiceInterceptor
from crossdock.rpc.surroundings import REAL, Surroundings

_log = structlog.get_logger("crossdock.rpc")

# What the process still allows running calls after the drain's own bound, in seconds: enough for
# a status to reach its caller.
_STOP_GRACE_S = 0.5


class RpcServer:
    """One listening gRPC server. Not serving until `set_serving(True)`.

    Life: construct, `add` services, `start`, `set_serving`, `drain`. Used on one event loop.
    """

    def __init__(
        self,
        instance_id: str,
        *,
        ungated: Iterable[str] = (),
        surroundings: Surroundings = REAL,
    ) -> None:
        self.gate = CallGate(instance_id)
        self._health = HealthServicer()
        self._names: list[str] = []
        self._serving = False
        self._server = surroundings.make_server(
            interceptors=[ServiceInterceptor(self.gate, frozenset(ungated))],
            options=[
                ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
                ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
                ("grpc.server.max_pending_requests", limits.PENDING_CALLS_MAX),
                ("grpc.server.max_pending_requests_hard_limit", limits.PENDING_CALLS_MAX),
                ("grpc.server_max_unrequested_time_in_server", limits.PENDING_MAX_S),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", limits.KEEPALIVE_TIME_MS),
                ("grpc.keepalive_timeout_ms", limits.KEEPALIVE_TIMEOUT_MS),
                ("grpc.http2.ping_timeout_ms", limits.PING_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 0),
                ("grpc.http2.min_ping_interval_without_data_ms", limits.KEEPALIVE_TIME_MS // 2),
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )

    def add(self, name: str, register: Callable[[grpc.aio.Server], None]) -> None:
        """Registers a service under its full name ("crossdock.api.v1.Decode")."""
        register(self._server)
        self._names.append(name)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. A port in use is an error that says so."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        await self._publish()
        address = f"{host}:{port}"
        try:
            bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            bound = 0
            cause: Exception | None = error
        else:
            cause = None
        if bound == 0:
            raise CrossdockError(
                Code.FAILED_PRECONDITION,
                f"cannot listen on {address}: the port is in use or the address is not of this "
                "host; choose another with --host and --port (0 takes a free one)",
                Reason.INVALID_FIELD,
                field="port",
            ) from cause
        await self._server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """What health answers, for the server as a whole and for each service."""
        self._serving = serving
        await self._publish()

    async def _publish(self) -> None:
        serving = self._serving and not self.gate.draining
        status = (
            health_pb2.HealthCheckResponse.SERVING
            if serving
            else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ["", *self._names]:
            await self._health.set(name, status)

    async def drain(self, timeout_s: float) -> bool:
        """NOT_SERVING, no new calls, running ones finish; then stops. Whether all finished."""
        self.gate.close()
        await self._publish()
        if self.gate.num_running:
            _log.info("draining", calls=self.gate.num_running)
        finished = await self.gate.wait_idle(timeout_s)
        if not finished:
            _log.warning("drain_cut_short", calls=self.gate.num_running)
        await self.stop()
        return finished

    async def stop(self) -> None:
        """Ends what still runs and closes the port."""
        await self._server.stop(_STOP_GRACE_S)
