"""What the router counts of requests and attempts, and what it knows of its fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crossdock.errors import Code
from services.router.fleet import Fleet
from services.router.generation import Account
from services.router.output import FinishReason
from services.router.retry import CANCELLED, FINISHED
from services.router.verdict import Kind

# Bounds of buckets in seconds: a model on one core and a long prompt are slow, a cached one is not.
_FIRST_TOKEN_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0),
    *(100.0, 250.0),
)
_PER_TOKEN_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0)
_FINISHED: Final = tuple(reason.value for reason in FinishReason)
_REQUEST_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 600.0)


class RouterMetrics(Collector):
    """Counted on the event loop, read by the threads of scrapes."""

    def __init__(self, fleet: Fleet, num_live: Callable[[], int]) -> None:
        self._fleet = fleet
        self._requests = _counter("requests", "Requests that ended, by how.", "outcome")
        self._attempts = _counter("attempts", "Attempts that ended, by how.", "outcome")
        self._retries = _counter("retries", "Attempts after a request's first.", "cause")
        # Zeros from the beginning: a rate sees the first one, too.
        for outcome in (*_FINISHED, *(code.name.lower() for code in Code)):
            self._requests.labels(outcome)
        for outcome in (FINISHED, CANCELLED, *(kind.value for kind in Kind)):
            self._attempts.labels(outcome)
        for kind in (Kind.REFUSED, Kind.MISMATCHED, Kind.LOST):
            self._retries.labels(kind.value)
        self._prompt_tokens = _counter("prompt_tokens", "Tokens of prompts that were taken.")
        self._cached_tokens = _counter(
            "cached_prompt_tokens", "Tokens of prompts that were not computed again."
        )
        self._tokens = _counter("generated_tokens", "Tokens that went out to callers.")
        self._first_token_s = _histogram(
            "time_to_first_token", "From a request to its first token.", _FIRST_TOKEN_S
        )
        self._per_token_s = _histogram(
            "time_per_output_token", "Mean over a request's later tokens.", _PER_TOKEN_S
        )
        self._handoff_s = _histogram(
            "handoff", "From the end of a prompt's computation to its commit.", _FIRST_TOKEN_S
        )
        self._request_s = _histogram("request", "From a request to its end.", _REQUEST_S)
        self._live = Gauge("crossdock_router_live_requests", "Requests that run.", registry=None)
        self._live.set_function(num_live)

    def request_refused(self, code: str) -> None:
        """A request that never ran."""
        self._requests.labels(code).inc()

    def request_ended(self, account: Account) -> None:
        """A request that ran."""
        self._requests.labels(account.outcome).inc()
        self._request_s.observe(account.duration_s)
        self._prompt_tokens.inc(account.num_prompt_tokens)
        self._tokens.inc(account.num_tokens)
        if account.num_tokens > 0:
            self._first_token_s.observe(account.ttft_s)
        if account.num_tokens > 1:
            self._per_token_s.observe(account.tpot_s)
        if account.ending is not None:
            self._cached_tokens.inc(account.ending.usage.cached_prompt_tokens)
            work = account.ending.timings.work
            if work.handoff_transfers > 0:
                self._handoff_s.observe(work.handoff_ms / 1e3)

    def attempt_started(self, after: Kind | None) -> None:
        """`after`: how the attempt before it failed."""
        if after is not None:
            self._retries.labels(after.value).inc()

    def attempt_ended(self, outcome: str) -> None:
        """How it ended: finished, cancelled, or the kind of its failure."""
        self._attempts.labels(outcome).inc()

    def collect(self) -> Iterable[Metric]:
        """What was counted, and the fleet as it is known now."""
        instances = GaugeMetricFamily(
            "crossdock_router_instances", "Configured instances by state.", labels=["role", "state"]
        )
        for (role, state), count in self._fleet.states().items():
            instances.add_metric([role.value, state], count)
        in_flight = GaugeMetricFamily(
            "crossdock_router_in_flight_tokens",
            "Tokens of running attempts: the load on the instances.",
            self._fleet.in_flight_tokens(),
        )
        owned: tuple[Collector, ...] = (
            *(self._requests, self._attempts, self._retries),
            *(self._prompt_tokens, self._cached_tokens, self._tokens),
            *(self._first_token_s, self._per_token_s, self._handoff_s, self._request_s),
            self._live,
        )
        return [*chain.from_iterable(c.collect() for c in owned), instances, in_flight]


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"crossdock_router_{name}", text, labels, registry=None)


def _histogram(name: str, text: str, bounds_s: tuple[float, ...]) -> Histogram:
    name = f"crossdock_router_{name}_seconds"
    return Histogram(name, text, buckets=bounds_s, registry=None)
