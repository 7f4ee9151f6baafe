"""Composition root of the router: reads the settings, builds, serves, drains."""

from __future__ import annotations

import asyncio
import signal
import sys

import structlog

from crossdock.errors import CrossdockError
from crossdock.models import ModelError, resolve
from crossdock.rpc.server import RpcServer
from crossdock.rpc.serving import announce, parse_settings
from crossdock.telemetry.logs import configure_logging
from crossdock.telemetry.metrics import MetricsServer
from crossdock.tokenization import ChatTemplate, ChatTemplateError, TokenizationError, Tokenizer
from services.router.config import RouterSettings
from services.router.fleet import Fleet
from services.router.generation import Inference
from services.router.http_server import HttpServer
from services.router.live import LiveRequests
from services.router.metrics import RouterMetrics
from services.router.openai_http import make_app
from services.router.poller import BUSY_INTERVAL_S, Poller
from services.router.prompting import Prompter
from services.router.retry import Retry, RetryBounds
from services.router.servicer import SERVICE_NAME, UNGATED_METHODS, InferenceServicer, register
from services.router.worker_client import GrpcWorkers

_log = structlog.get_logger("router")


class Router:
    """The router's parts, and the order in which they start and end."""

    def __init__(
        self,
        settings: RouterSettings,
        instance_id: str,
        report_interval_s: float = BUSY_INTERVAL_S,
    ) -> None:
        self._settings = settings
        directory = resolve(settings.model)
        prompter = Prompter(Tokenizer.load(directory), ChatTemplate.load(directory))
        self._workers = GrpcWorkers(settings.prefill, settings.decode)
        self.fleet = Fleet(settings.prefill, settings.decode)
        self.live = LiveRequests(settings.max_requests)
        self._poller = Poller(
            self.fleet, self._workers, lambda: len(self.live) > 0, report_interval_s
        )
        bounds = RetryBounds(settings.max_migrations, settings.instance_wait)
        self.metrics = RouterMetrics(self.fleet, lambda: len(self.live))
        retry = Retry(self.fleet, self._workers, self._poller, bounds, self.metrics)
        inference = Inference(directory.name, prompter, self.fleet, retry, self.live, self.metrics)
        self._grpc = RpcServer(instance_id, ungated=UNGATED_METHODS)
        self._grpc.add(SERVICE_NAME, lambda server: register(InferenceServicer(inference), server))
        self._http = HttpServer(make_app(inference, self._grpc.gate))

    async def start(self) -> tuple[str, str]:
        """Serves; returns the gRPC and the HTTP address."""
        settings = self._settings
        grpc_port = await self._grpc.start(settings.host, settings.port)
        http_port = await self._http.start(settings.host, settings.http_port)
        # An instance that is not there yet is no reason to wait: the answer is UNAVAILABLE then.
        await self._poller.start(settings.prefill, settings.decode)
        await self._grpc.set_serving(True)
        return f"{settings.host}:{grpc_port}", f"{settings.host}:{http_port}"

    async def drain(self) -> None:
        """Running requests of both APIs finish, within the bound; new ones are refused."""
        _log.info("draining", live_requests=len(self.live))
        finished = await self._grpc.drain(self._settings.drain_timeout)
        _log.info("drained", all_finished=finished)

    async def close(self) -> None:
        """Ends everything that still runs."""
        await self._http.stop()
        await self._grpc.stop()
        await self._poller.stop()
        await self._workers.close()


async def _serve(settings: RouterSettings, instance_id: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    router = Router(settings, instance_id)
    metrics = MetricsServer([router.metrics])
    try:
        metrics_address = await metrics.start(settings.host, settings.metrics_port)
        address, http_address = await router.start()
        addresses = {
            "address": address,
            "http_address": http_address,
            "metrics_address": metrics_address,
        }
        announce("router", instance_id, addresses)
        await stop.wait()
        await router.drain()
    finally:
        await router.close()
        await metrics.close()


def main() -> int:
    """0 after a drain, 1 when it cannot start, 2 for bad arguments."""
    settings = parse_settings(RouterSettings, "crossdock-router", sys.argv[1:])
    instance_id = settings.instance_name("router")
    configure_logging(settings.log_level, role="router", instance_id=instance_id)
    try:
        asyncio.run(_serve(settings, instance_id))
    except (CrossdockError, ModelError, TokenizationError, ChatTemplateError, OSError) as error:
        print(f"crossdock router: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
