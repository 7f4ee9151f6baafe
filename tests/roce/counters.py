"""What /metrics says of the two devices, before and after something is written over them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crossdock.fabric import ethtool
from crossdock.fabric.counters import FabricCollector
from tests.roce import writer
from tests.roce.fabric import FIRST, SECOND, Side
from tests.roce.runner import expect

# What a software device has; the rest is in hardware.
_NAMES = (
    *("sent_packets", "received_packets", "out_of_sequence_packets", "sequence_naks"),
    *("retransmissions", "duplicate_requests", "rnr_naks_received", "rnr_naks_sent"),
    *("retries_exceeded", "rnr_retries_exceeded", "send_errors", "link_downs"),
)
_SIDES = (FIRST, SECOND)
_PACKET_BYTES = 4096


def exported() -> Iterator[str]:
    """Every counter of the kernel that runs is there, and a write's packets are counted."""
    before = {side: _counters(side) for side in _SIDES}
    written = list(writer.independent_writer())
    after = {side: _counters(side) for side in _SIDES}
    yield from written
    for side in _SIDES:
        missing = [name for name in _NAMES if f"{name}_total" not in after[side]]
        expect(not missing, f"{side.port} has no {missing}, but {sorted(after[side])}")
        expect(after[side]["port_active"] == 1, f"{side.port} is not active")
        expect("ecn_marked_packets_total" not in after[side], "a software device counts no marks")
    packets_min = len(writer.payload()) // _PACKET_BYTES
    for name in ("sent_packets_total", "received_packets_total"):
        moved = {side.port: after[side][name] - before[side][name] for side in _SIDES}
        expect(max(moved.values()) >= packets_min, f"{name}: {moved}, not {packets_min}")
        yield f"{name}: {moved}"


def netdev_statistics() -> Iterator[str]:
    """The driver's statistics are what the kernel says elsewhere: the index of the other end."""
    for side in _SIDES:
        found = ethtool.statistics(side.interface)
        index = int(Path("/sys/class/net", side.interface, "iflink").read_text(encoding="ascii"))
        expect(found.get("peer_ifindex") == index, f"{side.interface}: {found}, not {index}")
        yield f"{side.interface}: {len(found)} statistics"


def _counters(side: Side) -> dict[str, float]:
    device, _, port = side.port.partition(":")
    labels = {"device": device, "port": port}
    return {
        sample.name.removeprefix("crossdock_fabric_"): sample.value
        for family in FabricCollector().collect()
        for sample in family.samples
        if sample.labels == labels
    }
