"""Metrics for Prometheus: the endpoint that every service serves, and how a name is made.

The values are read when somebody scrapes, by collectors that the service hands over. Each scrape
runs on a thread of its own, so a collector either reads what any thread may read or asks the
service's event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Final
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from crossdock.errors import Code, CrossdockError, Reason

_log = structlog.get_logger("crossdock.metrics")

# The last part of a name that we use inside, the part of the exported name, and how many of our
# units are one of Prometheus's. It wants base units: https://prometheus.io/docs/practices/naming/
_BASE_UNITS: Final = {"ns": ("seconds", 1e9), "us": ("seconds", 1e6), "ms": ("seconds", 1e3)}


def base_units(name: str) -> tuple[str, float]:
    """The name in base units, and what a value is divided by: exposed_ns -> exposed_seconds. The
    unit comes last: bytes_read -> read_bytes.
    """
    if name.startswith("bytes_"):
        return f"{name.removeprefix('bytes_')}_bytes", 1.0
    stem, _, unit = name.rpartition("_")
    if stem and unit in _BASE_UNITS:
        base, divisor = _BASE_UNITS[unit]
        return f"{stem}_{base}", divisor
    return name, 1.0


class MetricsServer:
    """/metrics over HTTP. Life: `start`, `close`. Used on one event loop."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        # The moments at which counters began, as series of their own, double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in collectors:
            self._registry.register(_Tolerant(collector))
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    async def start(self, host: str, port: int) -> str:
        """Listens; returns the address. A port in use is an error that says so."""
        try:
            # On a thread: binding looks the host's name up.
            server, thread = await asyncio.to_thread(
                start_http_server, port, host.strip("[]"), self._registry
            )
        except OSError as error:
            raise CrossdockError(
                Code.FAILED_PRECONDITION,
                f"cannot listen on {host}:{port} for metrics: {error.strerror}; choose another "
                "with --host and --metrics-port (0 takes a free one)",
                Reason.INVALID_FIELD,
                field="metrics_port",
            ) from error
        self._running = server, thread
        return f"{host}:{server.server_port}"

    async def close(self) -> None:
        """Closes the port."""
        if self._running is not None:
            server, thread = self._running
            await asyncio.to_thread(server.shutdown)
            server.server_close()
            thread.join()
            self._running = None


class _Tolerant(Collector):
    """A collector whose failure costs its own metrics and no others."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner

    def collect(self) -> Iterable[Metric]:
        try:
            return list(self._inner.collect())
        except Exception as error:  # noqa: BLE001 - the boundary: logged, and the rest is served
            _log.error("metrics_not_collected", exc_info=error)
            return []

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is shows only when it is collected."""
        return []
