"""Counters of recorded devices: each file of the kernel under its name in our vocabulary.

A recording is what `grep -r . ports` prints in the device's folder of sysfs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from crossdock.fabric.counters import FabricCollector
from tests.documented_metrics import PAGE, documented_rows, exported_rows

DATA = Path(__file__).parents[2] / "data" / "fabric"
MLX5 = {
    "ecn_marked_packets": 6,
    "cnps_sent": 5,
    "cnps_handled": 26,
    "cnps_ignored": 27,
    "out_of_sequence_packets": 8,
    "sequence_naks": 9,
    "implied_naks": 3,
    "ack_timeouts": 4,
    "retransmissions": 21,
    "duplicate_requests": 1,
    "rnr_naks_received": 20,
    "receive_queue_drops": 7,
    "retries_exceeded": 15,
    "rnr_retries_exceeded": 14,
    "icrc_errors": 29,
    "link_downs": 2,
    "received_packets": 1_000_034,
    "sent_packets": 1_000_036,
    "received_bytes": 1_000_000_000,
    "sent_bytes": 2_000_000_000,
    "receive_errors": 33,
    "send_discards": 35,
}
RXE = {
    "out_of_sequence_packets": 45,
    "sequence_naks": 48,
    "retransmissions": 42,
    "duplicate_requests": 43,
    "rnr_naks_received": 47,
    "rnr_naks_sent": 54,
    "retries_exceeded": 51,
    "rnr_retries_exceeded": 52,
    "send_errors": 53,
    "deferred_acks": 41,
    "link_downs": 44,
    "received_packets": 46,
    "sent_packets": 55,
}
# By name, priority or level.
MLX5_PAUSES = {
    ("pauses_received", "3"): 65,
    ("pauses_received", "all"): 71,
    ("pauses_sent", "3"): 66,
    ("pauses_sent", "all"): 73,
    ("paused_seconds", "3"): 2.5,
    ("paused_seconds", "all"): 72e-6,
    ("pausing_seconds", "3"): 1.5,
    ("pausing_seconds", "all"): 74e-6,
    ("priority_discards", "0"): 64,
    ("priority_discards", "3"): 0,
    ("pause_storms", "warning"): 62,
    ("pause_storms", "error"): 63,
}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Both recorded devices as the kernel would show them."""
    for recording in DATA.glob("*.sysfs"):
        for line in recording.read_text().splitlines():
            name, _, value = line.partition(":")
            file = tmp_path / recording.stem / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(value + "\n")
    return tmp_path


def recorded_statistics(netdev: str) -> dict[str, int]:
    """What `ethtool -S` printed for the device's network device."""
    if netdev != "ens1f0np0":
        return {}
    lines = (DATA / "mlx5_0.ethtool").read_text().splitlines()[1:]
    return {name.strip(): int(value) for name, _, value in (line.partition(":") for line in lines)}


def scrape(collector: FabricCollector) -> dict[tuple[str, str, str], float]:
    """By device, name and what other label there is; as a Prometheus would read it."""
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            device, port = labels.pop("device"), labels.pop("port")
            assert port == "1"
            found[device, sample.name, "".join(labels.values())] = sample.value
    return found


def expected(device: str, totals: Mapping[str, float]) -> dict[tuple[str, str, str], float]:
    return {(device, f"crossdock_fabric_{name}_total", ""): value for name, value in totals.items()}


def test_every_counter_of_both_devices(sysfs: Path) -> None:
    pauses = {
        ("mlx5_0", f"crossdock_fabric_{name}_total", label): value
        for (name, label), value in MLX5_PAUSES.items()
    }
    links = {
        ("mlx5_0", "crossdock_fabric_port_active", ""): 1.0,
        ("mlx5_0", "crossdock_fabric_port_bytes_per_second", ""): 12.5e9,
        ("rxe0", "crossdock_fabric_port_active", ""): 1.0,
        ("rxe0", "crossdock_fabric_port_bytes_per_second", ""): 1.25e9,
    }
    assert scrape(FabricCollector(sysfs, recorded_statistics)) == (
        expected("mlx5_0", MLX5) | expected("rxe0", RXE) | pauses | links
    )


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER"])
def test_a_link_that_is_not_up_is_not_active(sysfs: Path, state: str) -> None:
    (sysfs / "mlx5_0/ports/1/state").write_text(state + "\n")
    found = scrape(FabricCollector(sysfs, recorded_statistics))
    assert found["mlx5_0", "crossdock_fabric_port_active", ""] == 0
    assert found["rxe0", "crossdock_fabric_port_active", ""] == 1


def test_a_device_that_vanishes_is_left_out(sysfs: Path) -> None:
    def vanishing(netdev: str) -> dict[str, int]:
        shutil.rmtree(sysfs / "rxe0", ignore_errors=True)
        return recorded_statistics(netdev)

    collector = FabricCollector(sysfs, vanishing)
    assert {device for device, _, _ in scrape(collector)} == {"mlx5_0"}
    shutil.rmtree(sysfs)
    assert scrape(collector) == {}


@pytest.mark.parametrize("text", ["", "N/A (no PMA)\n", "-1\n", "\xff"])
def test_a_file_without_a_number_is_no_counter(sysfs: Path, text: str) -> None:
    file = sysfs / "mlx5_0/ports/1/hw_counters/np_cnp_sent"
    file.write_text(text, encoding="latin-1")
    found = scrape(FabricCollector(sysfs, recorded_statistics))
    assert ("mlx5_0", "crossdock_fabric_cnps_sent_total", "") not in found
    assert found["mlx5_0", "crossdock_fabric_cnps_handled_total", ""] == 26


def test_a_gid_without_a_device_is_passed_over(sysfs: Path) -> None:
    # The kernel answers EINVAL where the table has no entry.
    first = sysfs / "mlx5_0/ports/1/gid_attrs/ndevs/0"
    first.unlink()
    first.mkdir()
    found = scrape(FabricCollector(sysfs, recorded_statistics))
    assert found["mlx5_0", "crossdock_fabric_pauses_received_total", "3"] == 65


def test_the_page_lists_every_counter(sysfs: Path) -> None:
    families = FabricCollector(sysfs, recorded_statistics).collect()
    rows = {row for row in documented_rows() if row.name.startswith("crossdock_fabric_")}
    assert exported_rows(families) == rows


def test_alerts_name_metrics_that_exist() -> None:
    page = (PAGE.parent / "fabric.md").read_text(encoding="utf-8")
    named = set(re.findall(r"crossdock_[a-z_]+_total|crossdock_[a-z_]+(?=\[)", page))
    named |= {f"crossdock_fabric_{name}" for name in re.findall(r"`([a-z_]+_total)`", page)}
    assert len(named) > 20
    assert named <= {row.name for row in documented_rows()}


def test_no_fabric_at_all(tmp_path: Path) -> None:
    assert scrape(FabricCollector(tmp_path / "absent", recorded_statistics)) == {}
