"""Composition root of the router: reads the settings, builds, serves, drains."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from prometheus_client.registry import Collector

from crossdock.errors import invalid_argument
from crossdock.models import ModelError, resolve
from crossdock.rpc.server import RpcServer
from crossdock.rpc.serving import run_service
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
from services.router.servicer import NAME, UNGATED, InferenceServicer, register
from services.router.worker_client import GrpcWorkers


class Router:
    """The router's parts, and the order in which they start and end."""

    def __init__(
        self,
        settings: RouterSettings,
        instance_id: str,
        report_interval_s: float = BUSY_INTERVAL_S,
    ) -> None:
        self._settings = settings
        model, prompter = _load(settings.model)
        self._workers = GrpcWorkers(settings.prefill, settings.decode)
        self.fleet = Fleet(settings.prefill, settings.decode)
        self.live = LiveRequests(settings.max_requests)
        self._poller = Poller(
            self.fleet, self._workers, lambda: len(self.live) > 0, report_interval_s
        )
        bounds = RetryBounds(settings.max_migrations, settings.instance_wait)
        self.metrics = RouterMetrics(self.fleet, lambda: len(self.live))
        retry = Retry(self.fleet, self._workers, self._poller, bounds, self.metrics)
        inference = Inference(model, prompter, self.fleet, retry, self.live, self.metrics)
        self._grpc = RpcServer(instance_id, ungated=UNGATED)
        self._grpc.add(NAME, register(InferenceServicer(inference)))
        self.http_app = make_app(inference, self._grpc.gate)
        self._http = HttpServer(self.http_app)

    async def start(self) -> Mapping[str, str]:
        settings = self._settings
        grpc_port = await self._grpc.start(settings.host, settings.port)
        http_port = await self._http.start(settings.host, settings.http_port)
        # An instance that is not there yet is no reason to wait: the answer is UNAVAILABLE then.
        await self._poller.start()
        await self._grpc.set_serving(True)
        return {
            "address": f"{settings.host}:{grpc_port}",
            "http_address": f"{settings.host}:{http_port}",
        }

    def collectors(self) -> Iterable[Collector]:
        return [self.metrics]

    async def drain(self) -> None:
        """Running requests of both APIs finish, within the bound; new ones are refused."""
        await self._grpc.drain(self._settings.drain_timeout)
        await self._http.stop()
        await self._poller.stop()
        await self._workers.close()


def _load(model: str) -> tuple[str, Prompter]:
    """The model's name, and its tokenizer and chat template."""
    try:
        directory = resolve(model)
        return directory.name, Prompter(Tokenizer.load(directory), ChatTemplate.load(directory))
    except (ModelError, TokenizationError, ChatTemplateError) as error:
        raise invalid_argument("model", str(error)) from error


if __name__ == "__main__":
    sys.exit(run_service("router", RouterSettings, Router, sys.argv[1:]))
