"""A status becomes metrics, whatever an engine of tomorrow counts."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.metrics_core import Metric

from crossdock.api.v1 import kv_pb2
from crossdock.engine.front import Front
from crossdock.engine.process import EngineConfig
from crossdock.engine.service import EngineService
from crossdock.rpc.settings import ServiceSettings
from crossdock.telemetry.instance import InstanceCollector, metrics_of
from tests.fakes.engine import FakeLauncher


def values(metrics: list[Metric]) -> dict[tuple[str, ...], float]:
    """By name and label values, in the order of the labels' names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for metric in metrics
        for sample in metric.samples
    }


def decode_status() -> kv_pb2.InstanceStatus:
    status = kv_pb2.InstanceStatus(
        instance_id="decode-0",
        role="decode",
        model="m",
        kv_dtype="bf16",
        numerics_id="n",
        ready=True,
        num_free_blocks=5,
        num_owned_blocks=2,
        num_cached_blocks=1,
        num_quarantined_blocks=4,
        num_running=1,
        num_waiting=3,
        num_steps=42,
        queued_tokens=99,
        num_engine_restarts=2,
    )
    status.peers.add(instance_id="prefill-0", transport="shm", state="ready")
    status.peers.add(instance_id="prefill-1", transport="shm", state="ready")
    status.peers.add(
        instance_id="prefill-2",
        transport="tcp",
        state="broken",
        staged=True,
        bytes_written=4_096,
        exposed_ns=1_500_000_000,
    )
    return status


def test_the_account_of_an_engine() -> None:
    found = values(list(metrics_of(decode_status())))
    expected: dict[tuple[str, ...], float] = {
        ("crossdock_instance_info", "decode-0", "bf16", "m", "n", "decode"): 1,
        ("crossdock_instance_ready",): 1,
        ("crossdock_instance_draining",): 0,
        ("crossdock_kv_blocks", "free"): 5,
        ("crossdock_kv_blocks", "owned"): 2,
        ("crossdock_kv_blocks", "cached"): 1,
        ("crossdock_kv_blocks", "quarantined"): 4,
        ("crossdock_engine_sequences", "running"): 1,
        ("crossdock_engine_sequences", "waiting"): 3,
        ("crossdock_engine_queued_tokens",): 99,
        ("crossdock_engine_steps_total",): 42,
        ("crossdock_engine_restarts_total",): 2,
    }
    assert expected.items() <= found.items()


def test_pairs_are_counted_by_state_and_transport() -> None:
    (pairs,) = (m for m in metrics_of(decode_status()) if m.name == "crossdock_pairs")
    kind = ("state", "transport", "staged")
    counts = {tuple(s.labels[word] for word in kind): s.value for s in pairs.samples}
    assert counts == {("ready", "shm", "false"): 2, ("broken", "tcp", "true"): 1}


def test_what_each_pair_moved() -> None:
    found = values(list(metrics_of(decode_status())))
    assert found["crossdock_pair_written_bytes_total", "prefill-2", "tcp"] == 4_096
    assert found["crossdock_pair_exposed_seconds_total", "prefill-2", "tcp"] == 1.5
    assert found["crossdock_pair_written_bytes_total", "prefill-0", "shm"] == 0


@pytest.mark.parametrize(("role", "side"), [("prefill", "sender"), ("decode", "receiver")])
def test_a_counter_that_is_new_appears_by_itself(role: str, side: str) -> None:
    status = kv_pb2.InstanceStatus(role=role)
    status.counters.add(name="handoff_refused_moonphase", value=7)
    status.counters.add(name="moonphase_ns", value=2_500_000_000)
    status.counters.add(name="moon_bytes", value=11)
    status.counters.add(name="pairs_bytes_moved", value=13)
    found = values(list(metrics_of(status)))
    assert found["crossdock_handoff_outcomes_total", "refused_moonphase", side] == 7
    assert found["crossdock_engine_moonphase_seconds_total",] == 2.5
    assert found["crossdock_engine_moon_bytes_total",] == 11
    assert found["crossdock_engine_pairs_moved_bytes_total",] == 13


def test_live_handoffs_are_counted_by_state() -> None:
    status = kv_pb2.InstanceStatus(role="decode")
    status.counters.add(name="handoffs_granted", value=2)
    status.counters.add(name="handoff_commits", value=5)
    found = values(list(metrics_of(status)))
    assert found["crossdock_handoffs", "granted"] == 2
    assert found["crossdock_handoff_outcomes_total", "commits", "receiver"] == 5


def test_what_falls_is_a_gauge_and_what_rises_a_counter() -> None:
    status = kv_pb2.InstanceStatus(role="kvstore")
    status.counters.add(name="hit_blocks", value=3)
    status.counters.add(name="leases", value=2)
    kinds = {metric.name: metric.type for metric in metrics_of(status)}
    assert kinds["crossdock_kvstore_hit_blocks"] == "counter"
    assert kinds["crossdock_kvstore_leases"] == "gauge"
    assert not any(name.startswith("crossdock_engine") for name in kinds)


async def test_a_scrape_asks_the_engine_each_time() -> None:
    launcher = FakeLauncher()
    config = EngineConfig(model_directory="/models/tiny", instance_id="decode-0")
    front = Front("decode", config, launcher)
    service = EngineService(ServiceSettings(drain_timeout=1), front)
    collector = next(iter(service.collectors()))

    def scrape() -> dict[tuple[str, ...], float]:
        return values(list(collector.collect()))

    assert (await asyncio.to_thread(scrape))["crossdock_instance_ready",] == 0
    await service.start()
    found = await asyncio.to_thread(scrape)
    assert found["crossdock_instance_ready",] == 1
    assert found["crossdock_engine_steps_total",] == 42
    await service.drain()


async def test_a_scrape_of_a_busy_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossdock.telemetry.instance._ASK_MAX_S", 0.05)
    asked = asyncio.Event()

    async def never() -> kv_pb2.InstanceStatus:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    collector = InstanceCollector(never)
    # A loop that comes to nothing within so short a time has not even begun to ask.
    while not asked.is_set():
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(collector.collect)
