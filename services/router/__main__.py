"""Composition root of the router: reads the configuration, builds, serves, drains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import structlog
from pydantic import ValidationError
from pydantic_settings import SettingsError

from crossdock.errors import CrossdockError
from crossdock.models import ModelError, resolve
from crossdock.rpc.server import RpcServer
from crossdock.telemetry import configure_logging
from crossdock.tokenization import ChatTemplate, ChatTemplateError, TokenizationError, Tokenizer
from services.router.config import RouterConfig
from services.router.fleet import Fleet
from services.router.generation import Inference
from services.router.http_server import HttpServer
from services.router.live import LiveRequests
from services.router.openai_http import make_app
from services.router.poller import Poller
from services.router.prompting import Prompter
from services.router.retry import Retry, RetryBounds
from services.router.servicer import SERVICE_NAME, UNGATED_METHODS, InferenceServicer, register
from services.router.worker_grpc import GrpcWorkers

_log = structlog.get_logger("router")


async def serve(config: RouterConfig, model_directory: Path) -> None:
    """From the open ports to the end of the drain."""
    prompter = Prompter(Tokenizer.load(model_directory), ChatTemplate.load(model_directory))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    workers = GrpcWorkers(config.prefill, config.decode)
    fleet = Fleet(config.prefill, config.decode)
    live = LiveRequests(config.max_requests)
    poller = Poller(fleet, workers, is_busy=lambda: len(live) > 0)
    bounds = RetryBounds(config.max_migrations, config.instance_wait)
    retry = Retry(fleet, workers, poller, bounds)
    inference = Inference(model_directory.name, prompter, fleet, retry, live)

    grpc_server = RpcServer(config.instance_id, ungated=UNGATED_METHODS)
    grpc_server.add(SERVICE_NAME, lambda server: register(InferenceServicer(inference), server))
    http_server = HttpServer(make_app(inference, grpc_server.gate))
    try:
        grpc_port = await grpc_server.start(config.host, config.port)
        http_port = await http_server.start(config.host, config.http_port)
        await poller.start(config.prefill, config.decode)
        await grpc_server.set_serving(True)
        _print_ready(config, grpc_port, http_port)
        await stop.wait()
        _log.info("draining", live_requests=len(live))
        finished = await grpc_server.drain(config.drain_timeout)
        _log.info("drained", all_finished=finished)
    finally:
        await http_server.stop()
        await grpc_server.stop()
        await poller.stop()
        await workers.close()


def _print_ready(config: RouterConfig, grpc_port: int, http_port: int) -> None:
    line = {
        "event": "ready",
        "role": "router",
        "instance_id": config.instance_id,
        "address": f"{config.host}:{grpc_port}",
        "http_address": f"{config.host}:{http_port}",
        "pid": os.getpid(),
    }
    print(json.dumps(line), flush=True)


def main(argv: list[str]) -> int:
    """0 after a drain, 1 when it cannot start, 2 for bad arguments."""
    try:
        # mypy does not know the arguments that pydantic-settings takes by an underscore.
        config = RouterConfig(_cli_parse_args=argv)  # type: ignore[call-arg]
    except (ValidationError, SettingsError) as error:
        print(f"router: bad arguments: {_one_line(error)}", file=sys.stderr)
        return 2
    configure_logging(config.log_level, role="router", instance_id=config.instance_id)
    try:
        asyncio.run(serve(config, resolve(config.model)))
    except (CrossdockError, ModelError, TokenizationError, ChatTemplateError) as error:
        print(f"router: {error}", file=sys.stderr)
        return 1
    return 0


def _one_line(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        return " ".join(str(error).split())
    return "; ".join(
        f"--{'.'.join(str(part) for part in item['loc']).replace('_', '-')}: {item['msg']}"
        for item in error.errors()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
