"""How a service process begins and ends: settings, signals, the ready line, exit codes.

Exit codes: 0 after a drain, 1 when the service could not start or failed, 2 for bad arguments.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from prometheus_client.registry import Collector
from pydantic import ValidationError
from pydantic_settings import SettingsError

from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc.settings import ServiceSettings
from crossdock.telemetry.logs import configure_logging
from crossdock.telemetry.metrics import MetricsServer

# An idle service has some 40; each connection, pair and running call takes a few more.
_OPEN_FILES_MIN: Final = 256

Settings = TypeVar("Settings", bound=ServiceSettings)


class Service(Protocol):
    """What `run_service` drives."""

    async def start(self) -> Mapping[str, str]:
        """Serves; returns its addresses, `host:port` each, by their names in the ready line."""

    async def drain(self) -> None:
        """Ends gracefully, within the bound of its settings, whether or not it has started."""

    def collectors(self) -> Iterable[Collector]:
        """What its metrics are read from, from before its start to after its drain."""


def parse_settings(kind: type[Settings], program: str, arguments: Sequence[str]) -> Settings:
    """Settings from flags and the environment. Bad ones end the process with exit code 2."""
    try:
        return kind.from_flags(program, arguments)
    except (ValidationError, SettingsError) as error:
        print(f"{program}: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)


def _one_line(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        return str(error)
    return "; ".join(
        f"--{'-'.join(str(part) for part in item['loc']).replace('_', '-')}: {item['msg']}"
        for item in error.errors()
    )


def run_service(
    role: str,
    kind: type[Settings],
    build: Callable[[Settings, str], Service],
    arguments: Sequence[str],
) -> int:
    """Builds, starts, announces, waits for SIGTERM or SIGINT, drains. Returns the exit code.

    `build` is called on the event loop, with the settings and the instance's name.
    """
    settings = parse_settings(kind, f"crossdock-{role}", arguments)
    instance_id = settings.instance_name(role)
    configure_logging(settings.log_level, role=role, instance_id=instance_id)
    try:
        _allow_open_files()
        asyncio.run(_run(role, instance_id, settings, build))
    except (CrossdockError, OSError) as error:
        print(f"crossdock {role}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _allow_open_files() -> None:
    """As many as there may be: connections take descriptors, and libraries abort without one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if 0 <= most < _OPEN_FILES_MIN:
        raise CrossdockError(
            Code.FAILED_PRECONDITION,
            f"{most} open files are allowed, at least {_OPEN_FILES_MIN} are needed; raise "
            "ulimit -n, or LimitNOFILE in a unit",
            Reason.NOT_READY,
        )


async def _run(
    role: str,
    instance_id: str,
    settings: Settings,
    build: Callable[[Settings, str], Service],
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _watch_parent(settings.parent_pid, stop)
    service = build(settings, instance_id)
    metrics = MetricsServer(service.collectors())
    try:
        metrics_address = await metrics.start(settings.host, settings.metrics_port)
        start = asyncio.create_task(service.start())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            _announce(role, instance_id, {**start.result(), "metrics_address": metrics_address})
            await stopped
        else:
            start.cancel()
            await asyncio.wait({start})
    finally:
        await service.drain()
        await metrics.close()


def _watch_parent(pid: int, stop: asyncio.Event) -> None:
    """Sets `stop` once the process that started this one, where one is named, has ended."""
    if pid == 0:
        return
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        stop.set()

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        stop.set()
        return
    loop.add_reader(descriptor, on_end)
    if os.getppid() != pid:  # it has ended, and another may have its number
        on_end()


def _announce(role: str, instance_id: str, addresses: Mapping[str, str]) -> None:
    """The one line on stdout: whoever started the process waits for it."""
    line = {
        "event": "ready",
        "role": role,
        "instance_id": instance_id,
        **addresses,
        "pid": os.getpid(),
    }
    print(json.dumps(line), flush=True)
