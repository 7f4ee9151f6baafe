"""The metrics of a prefill, decode or kvstore instance, made of its status.

Everything that the status counts is exported: a counter that is new in an engine, or a number that
is new in a pair, appears under its own name without a line here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from crossdock.api.v1 import kv_pb2
from crossdock.telemetry.metrics import base_units

# What a scrape waits for the event loop and the engine, in seconds. Prometheus gives a scrape 10.
_ASK_MAX_S: Final = 5.0
_STATES: Final = ("free", "owned", "cached", "quarantined")
# An instance is one end of its handoffs.
_SIDE: Final = {"prefill": "sender", "decode": "receiver"}
_OUTCOME: Final = "handoff_"
_LIVE: Final = "handoffs_"
# What is counted for each pair, summed over all there ever were.
_OF_PAIRS: Final = "pairs_"
# What the status lists with its counters, and falls as well as rises.
_GAUGES: Final = frozenset({"cached_unreferenced_blocks", "leases", "pinned_blocks"})
_TEXTS: Final = {
    "cached_unreferenced_blocks": "Cached blocks that no sequence uses: free when needed.",
    "computed_tokens": "Tokens that went through the model, those of recomputations too.",
    "generated_tokens": "Tokens sampled here.",
    "store_blocks_read": "Blocks read from the kvstore instead of computed.",
    "store_blocks_written": "Blocks written to the kvstore.",
    "store_blocks_bad": "Blocks read whose bytes were not those that were stored.",
    "store_reads_declined": "Reads not made, for computing was predicted to be faster.",
    "bytes_written": "Bytes written into a peer's memory.",
    "bytes_read": "Bytes read from a peer's memory.",
    "operations": "One-sided writes, reads and fences, after merging.",
    "handoffs": "Handoffs sent and committed.",
    "exposed_ns": "From the first token of handoffs to their acknowledged commit.",
    "blocks_read": "Blocks read from a decode peer instead of computed.",
    "reads_declined": "Reads not made, for computing was predicted to be faster.",
    "reads_failed": "Reads that failed; the blocks were computed.",
    "hit_blocks": "Blocks asked for that were here.",
    "miss_blocks": "Blocks asked for that were not.",
    "reserved_blocks": "Places given to writers.",
    "published_blocks": "Blocks written and since then visible.",
    "abandoned_blocks": "Places given and never written.",
    "evicted_blocks": "Blocks that made room for others.",
    "dropped_blocks": "Blocks that a reader found to be bad.",
    "stale_drops": "Such reports of a block that was gone already.",
    "expired_leases": "Leases that nobody released in time.",
    "refused_reservations": "Blocks that found no room.",
    "leases": "Leases that are held.",
    "pinned_blocks": "Blocks that a reader holds.",
}
_INTEGERS: Final = frozenset(
    {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}  # not the fixed64 epoch
)


class InstanceCollector(Collector):
    """Asks the instance for its status at every scrape. Made on the loop that answers."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, kv_pb2.InstanceStatus]]) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterable[Metric]:
        """Runs on the thread of a scrape. Nothing where the loop is busy for long or ended."""
        asked = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        try:
            return list(metrics_of(asked.result(_ASK_MAX_S)))
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise


def metrics_of(status: kv_pb2.InstanceStatus) -> Iterator[Metric]:
    """Every metric that a status holds."""
    yield InfoMetricFamily(
        "crossdock_instance",
        "What the instance is.",
        {
            "instance_id": status.instance_id,
            "role": status.role,
            "model": status.model,
            "kv_dtype": status.kv_dtype,
            "numerics_id": status.numerics_id,
        },
    )
    yield _gauge("crossdock_instance_ready", "1 while it takes requests.", status.ready)
    yield _gauge("crossdock_instance_draining", "1 once it was told to end.", status.draining)
    blocks = GaugeMetricFamily("crossdock_kv_blocks", "KV blocks by state.", labels=["state"])
    for state in _STATES:
        blocks.add_metric([state], getattr(status, f"num_{state}_blocks"))
    yield blocks
    yield from _pairs(status)
    if status.role in _SIDE:
        yield from _engine(status)
    yield from _counters(status)


def _engine(status: kv_pb2.InstanceStatus) -> Iterator[Metric]:
    sequences = GaugeMetricFamily(
        "crossdock_engine_sequences", "Sequences by state.", labels=["state"]
    )
    sequences.add_metric(["running"], status.num_running)
    sequences.add_metric(["waiting"], status.num_waiting)
    yield sequences
    yield _gauge(
        "crossdock_engine_queued_tokens",
        "Prompt tokens that wait or are partly computed.",
        status.queued_tokens,
    )
    yield CounterMetricFamily("crossdock_engine_steps", "Steps computed.", status.num_steps)
    yield CounterMetricFamily(
        "crossdock_engine_restarts", "Engines started after one died.", status.num_engine_restarts
    )


def _pairs(status: kv_pb2.InstanceStatus) -> Iterator[Metric]:
    """How many pairs there are of a kind, and whatever is counted for each."""
    words = ["state", "transport"]
    fields = kv_pb2.PeerStatus.DESCRIPTOR.fields
    words += [f.name for f in fields if f.cpp_type == FieldDescriptor.CPPTYPE_BOOL]
    pairs = GaugeMetricFamily("crossdock_pairs", "Pairs with other instances.", labels=words)
    kinds = Counter(tuple(_word(getattr(p, word)) for word in words) for p in status.peers)
    for kind, count in sorted(kinds.items()):
        pairs.add_metric(kind, count)
    yield pairs
    for field in fields:
        if field.cpp_type in _INTEGERS and field.type != FieldDescriptor.TYPE_FIXED64:
            what = field.name.removeprefix("num_")
            name, divisor = base_units(what)
            text = f"{_TEXTS.get(what, what)} Since the pair was made."
            counted = CounterMetricFamily(
                f"crossdock_pair_{name}", text, labels=["peer", "transport"]
            )
            for peer in status.peers:
                value = getattr(peer, field.name) / divisor
                counted.add_metric([peer.instance_id, peer.transport], value)
            yield counted


def _counters(status: kv_pb2.InstanceStatus) -> Iterator[Metric]:
    prefix = "crossdock_engine" if status.role in _SIDE else f"crossdock_{status.role}"
    outcomes = CounterMetricFamily(
        "crossdock_handoff_outcomes",
        "What became of handoffs and of the messages about them.",
        labels=["side", "outcome"],
    )
    live = GaugeMetricFamily("crossdock_handoffs", "Live handoffs by state.", labels=["state"])
    for counter in status.counters:
        if counter.name.startswith(_LIVE):
            live.add_metric([counter.name.removeprefix(_LIVE)], counter.value)
            continue
        if counter.name.startswith(_OUTCOME):
            outcome = counter.name.removeprefix(_OUTCOME)
            outcomes.add_metric([_SIDE[status.role], outcome], counter.value)
            continue
        what = counter.name.removeprefix(_OF_PAIRS)
        group = f"{prefix}_{_OF_PAIRS}" if what != counter.name else f"{prefix}_"
        name, divisor = base_units(what)
        text = _TEXTS.get(what, f"{what}, as the instance counts.")
        if counter.name in _GAUGES:
            yield _gauge(group + name, text, counter.value)
        else:
            yield CounterMetricFamily(group + name, text, counter.value / divisor)
    yield from (family for family in (live, outcomes) if family.samples)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, float(value))


def _word(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value
