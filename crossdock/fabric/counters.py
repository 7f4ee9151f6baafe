"""What this host's RDMA ports count, in one vocabulary whatever the NIC.

The kernel shows counters in /sys/class/infiniband/DEVICE/ports/PORT, in `counters` (from the port
itself, absent for a software device) and in `hw_counters` (the driver's, under its own names); PFC
pauses are the network device's, see ethtool.py. Verbs, and with them pyverbs, do not give these
counters: ibv_counters are of flows.

Names of mlx5: drivers/infiniband/hw/mlx5/counters.c and Documentation/networking/device_drivers/
ethernet/mellanox/mlx5/counters.rst; of rxe: drivers/infiniband/sw/rxe/rxe_hw_counters.c; of the
port: Documentation/ABI/stable/sysfs-class-infiniband; all in the Linux kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crossdock.fabric import ethtool
from crossdock.fabric.devices import text_of

_SYSFS: Final = Path("/sys/class/infiniband")
_PREFIX: Final = "crossdock_fabric_"
_PORT: Final = ("device", "port")
_PORT_AND_PRIORITY: Final = (*_PORT, "priority")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A figure of a port, and the files that hold it: the first that is there counts."""

    name: str
    text: str
    files: tuple[str, ...]
    scale: int = 1


def _of(name: str, text: str, *files: str, scale: int = 1) -> Quantity:
    return Quantity(name, text, files, scale)


QUANTITIES: Final = (
    _of(
        "ecn_marked_packets",
        "RoCE packets that arrived with an ECN mark: congestion on their way here.",
        "hw_counters/np_ecn_marked_roce_packets",
    ),
    _of(
        "cnps_sent",
        "Congestion notifications sent to senders after ECN marks.",
        "hw_counters/np_cnp_sent",
    ),
    _of(
        "cnps_handled",
        "Congestion notifications that made this NIC send slower.",
        "hw_counters/rp_cnp_handled",
    ),
    _of(
        "cnps_ignored",
        "Congestion notifications without an effect: the reaction point is off.",
        "hw_counters/rp_cnp_ignored",
    ),
    _of(
        "out_of_sequence_packets",
        "Requests that arrived out of order: packets before them were lost or overtaken.",
        "hw_counters/out_of_sequence",
        "hw_counters/out_of_seq_request",
    ),
    _of(
        "sequence_naks",
        "Gaps that peers reported in what this host sent.",
        "hw_counters/packet_seq_err",
        "hw_counters/rcvd_seq_err",
    ),
    _of(
        "implied_naks",
        "Answers beyond a read or atomic that is still unanswered.",
        "hw_counters/implied_nak_seq_err",
    ),
    _of(
        "ack_timeouts",
        "Acknowledgements that did not come in time.",
        "hw_counters/local_ack_timeout_err",
    ),
    _of(
        "retransmissions",
        "Retransmissions that the transport started.",
        "hw_counters/roce_adp_retrans",
        "hw_counters/completer_retry_err",
    ),
    _of("duplicate_requests", "Requests that came again.", "hw_counters/duplicate_request"),
    _of(
        "rnr_naks_received",
        "Times that a peer had no receive buffer ready.",
        "hw_counters/rnr_nak_retry_err",
        "hw_counters/rcvd_rnr_err",
    ),
    _of("rnr_naks_sent", "Times that this host had none ready.", "hw_counters/send_rnr_err"),
    _of(
        "receive_queue_drops",
        "Packets dropped for want of a posted receive.",
        "hw_counters/out_of_buffer",
    ),
    _of(
        "retries_exceeded",
        "Queue pairs that failed after their last retry.",
        "hw_counters/req_transport_retries_exceeded",
        "hw_counters/retry_exceeded_err",
    ),
    _of(
        "rnr_retries_exceeded",
        "Queue pairs that failed since a peer never had a receive buffer.",
        "hw_counters/req_rnr_retries_exceeded",
        "hw_counters/retry_rnr_exceeded_err",
    ),
    _of("send_errors", "Packets that could not be sent.", "hw_counters/send_err"),
    _of("deferred_acks", "Answers that waited for their handling.", "hw_counters/ack_deferred"),
    _of(
        "icrc_errors",
        "RoCE packets with a wrong invariant checksum: damaged on their way.",
        "hw_counters/rx_icrc_encapsulated",
    ),
    _of(
        "link_downs",
        "Times that the link went down.",
        "counters/link_downed",
        "hw_counters/link_downed",
    ),
    _of(
        "received_packets",
        "Packets received.",
        "counters/port_rcv_packets",
        "hw_counters/rcvd_pkts",
    ),
    _of("sent_packets", "Packets sent.", "counters/port_xmit_packets", "hw_counters/sent_pkts"),
    # These two count words of four bytes.
    _of("received_bytes", "Bytes received.", "counters/port_rcv_data", scale=4),
    _of("sent_bytes", "Bytes sent.", "counters/port_xmit_data", scale=4),
    _of("receive_errors", "Packets received with an error.", "counters/port_rcv_errors"),
    _of("send_discards", "Packets discarded before sending.", "counters/port_xmit_discards"),
)

# The network device's, by priority; "all" where the pause is of the whole link (802.3x).
_PAUSES: Final = re.compile(r"(rx|tx)_(?:prio([0-7])|global)_pause(_duration)?")
_DISCARDS: Final = re.compile(r"rx_prio([0-7])_discards")
_STORMS: Final = {
    "tx_pause_storm_warning_events": "warning",
    "tx_pause_storm_error_events": "error",
}
_MICROSECONDS: Final = 1e6
_RATE: Final = re.compile(r"([0-9.]+) Gb/sec")


class FabricCollector(Collector):
    """Reads every port at every scrape. A device that vanishes meanwhile is left out."""

    def __init__(
        self,
        sysfs: Path = _SYSFS,
        netdev_statistics: Callable[[str], Mapping[str, int]] = ethtool.statistics,
    ) -> None:
        self._sysfs = sysfs
        self._netdev_statistics = netdev_statistics

    def collect(self) -> Iterable[Metric]:
        """What the ports have; no family without a sample."""
        ports = sorted(self._sysfs.glob("*/ports/*"))
        quantities = [_counter(q.name, q.text, _PORT) for q in QUANTITIES]
        active = GaugeMetricFamily(f"{_PREFIX}port_active", "1 while the link is up.", labels=_PORT)
        rate = GaugeMetricFamily(
            f"{_PREFIX}port_bytes_per_second", "What the link can carry.", labels=_PORT
        )
        pauses = _Pauses()
        for path in ports:
            port = (path.parent.parent.name, path.name)
            for quantity, family in zip(QUANTITIES, quantities, strict=True):
                values = (_number(path / file) for file in quantity.files)
                value = next((v for v in values if v is not None), None)
                if value is not None:
                    family.add_metric(port, value * quantity.scale)
            if state := text_of(path / "state"):
                active.add_metric(port, float(state.endswith("ACTIVE")))
            if match := _RATE.match(text_of(path / "rate")):
                rate.add_metric(port, float(match[1]) * 1e9 / 8)
            pauses.add(port, self._netdev_statistics(_netdev(path)))
        families = [*quantities, active, rate, *pauses.families()]
        return [family for family in families if family.samples]


class _Pauses:
    """The counters of network devices that are of interest."""

    def __init__(self) -> None:
        self._frames = {
            "rx": _counter(
                "pauses_received",
                "Pause frames that stopped this host: congestion ahead.",
                _PORT_AND_PRIORITY,
            ),
            "tx": _counter(
                "pauses_sent",
                "Pause frames that stopped the switch: this host is too slow.",
                _PORT_AND_PRIORITY,
            ),
        }
        self._seconds = {
            "rx": _counter(
                "paused_seconds", "Time for which the host was stopped.", _PORT_AND_PRIORITY
            ),
            "tx": _counter("pausing_seconds", "Time for which the switch was.", _PORT_AND_PRIORITY),
        }
        self._discards = _counter(
            "priority_discards",
            "Packets dropped for want of a buffer; none on a lossless priority.",
            _PORT_AND_PRIORITY,
        )
        self._storms = _counter(
            "pause_storms",
            "Times that the NIC paused for too long; level error: until it gave up pausing.",
            (*_PORT, "level"),
        )

    def add(self, port: tuple[str, str], statistics: Mapping[str, int]) -> None:
        """Takes what it knows of a network device's statistics."""
        for name, value in statistics.items():
            if match := _PAUSES.fullmatch(name):
                direction, priority, is_duration = match.groups()
                labels = (*port, priority or "all")
                if is_duration:
                    self._seconds[direction].add_metric(labels, value / _MICROSECONDS)
                else:
                    self._frames[direction].add_metric(labels, value)
            elif match := _DISCARDS.fullmatch(name):
                self._discards.add_metric((*port, match[1]), value)
            elif level := _STORMS.get(name):
                self._storms.add_metric((*port, level), value)

    def families(self) -> Iterator[Metric]:
        """Everything taken."""
        yield from (*self._frames.values(), *self._seconds.values(), self._discards, self._storms)


def _counter(name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"{_PREFIX}{name}", text, labels=labels)


def _number(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdecimal() else None


def _netdev(port: Path) -> str:
    """The network device of the port's first GID that has one; empty for an InfiniBand port."""
    files = (port / "gid_attrs" / "ndevs").glob("*")
    names = (text_of(file) for file in sorted(files, key=lambda file: int(file.name)))
    return next((name for name in names if name), "")
