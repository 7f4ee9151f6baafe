"""The endpoint serves what its collectors have, and no failing collector stops it."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Iterable, Iterator

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from crossdock.errors import Code, CrossdockError
from crossdock.telemetry.metrics import MetricsServer, base_units


class One(Collector):
    def collect(self) -> Iterable[Metric]:
        return [GaugeMetricFamily("one", "One.", 1.0)]


class Broken(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("half", "Half.", 0.5)
        raise OSError("the device vanished")


async def scrape(address: str) -> dict[str, Metric]:
    def fetch() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
            text: str = reply.read().decode()
            return text

    text = await asyncio.to_thread(fetch)
    return {family.name: family for family in text_string_to_metric_families(text)}


async def test_a_collector_that_fails_costs_only_its_own_metrics() -> None:
    server = MetricsServer([Broken(), One()])
    address = await server.start("127.0.0.1", 0)
    families = await scrape(address)
    assert families["one"].samples[0].value == 1.0
    assert "half" not in families
    assert "process_cpu_seconds" in families
    await server.close()
    with pytest.raises(OSError, match="refused"):
        await scrape(address)


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = MetricsServer([])
        with pytest.raises(CrossdockError, match=f"127.0.0.1:{port} for metrics") as caught:
            await server.start("127.0.0.1", port)
        assert caught.value.code is Code.FAILED_PRECONDITION
        await server.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("exposed_ns", ("exposed_seconds", 1e9)),
        ("paused_us", ("paused_seconds", 1e6)),
        ("wait_ms", ("wait_seconds", 1e3)),
        ("sent_bytes", ("sent_bytes", 1.0)),
        ("bytes_read", ("read_bytes", 1.0)),
        ("returns", ("returns", 1.0)),
        ("ns", ("ns", 1.0)),
    ],
)
def test_names_end_in_their_base_unit(name: str, expected: tuple[str, float]) -> None:
    assert base_units(name) == expected
