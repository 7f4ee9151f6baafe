"""Every service of a real fleet is scraped, and what a handoff does shows in the figures."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.cli.fleet_record import ServiceRecord
from tests.conftest import KV_MEMORY, StartFleet
from tests.documented_metrics import documented_outcomes, documented_rows, exported_rows
from tests.e2e.caller import (
    Caller,
    router_address,
    sampling,
    services,
    wait_until_clean,
    wait_until_connected,
)

PROMPT = [(5 * i + 1) % 256 for i in range(200)]
NUM_TOKENS = 8
TRIES_MAX = 20


def scrape(service: ServiceRecord) -> dict[str, Metric]:
    """The metrics of one service, by the name of their family."""
    with urllib.request.urlopen(f"http://{service.metrics_address}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def figure(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The sum over the samples of that name that have these labels; 0 when there is none."""
    return sum(
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, fleet_starter: StartFleet) -> Fleet:
    fleet = fleet_starter(FleetOptions(tiny_model, kv_memory=KV_MEMORY))
    wait_until_connected(fleet)
    return fleet


async def one_request(fleet: Fleet, prompt: list[int] = PROMPT) -> None:
    async with Caller(router_address(fleet)) as caller:
        answer = await caller.generate(prompt, sampling(NUM_TOKENS))
        assert len(answer.ids) == NUM_TOKENS


def test_a_handoff_moves_the_figures_of_every_service(fleet: Fleet) -> None:
    records = {role: services(fleet, role)[0] for role in ("router", "prefill", "decode")}
    before = {role: scrape(record) for role, record in records.items()}
    asyncio.run(one_request(fleet))
    wait_until_clean(fleet)
    after = {role: scrape(record) for role, record in records.items()}

    def moved(role: str, name: str, **labels: str) -> float:
        return figure(after[role], name, **labels) - figure(before[role], name, **labels)

    assert moved("router", "crossdock_router_requests_total", outcome="length") == 1
    assert moved("router", "crossdock_router_attempts_total", outcome="finished") == 1
    assert moved("router", "crossdock_router_generated_tokens_total") == NUM_TOKENS
    assert moved("router", "crossdock_router_prompt_tokens_total") == len(PROMPT)
    assert moved("router", "crossdock_router_time_to_first_token_seconds_count") == 1
    assert moved("router", "crossdock_router_handoff_seconds_count") == 1
    assert moved("prefill", "crossdock_engine_computed_tokens_total") == len(PROMPT)
    assert moved("decode", "crossdock_engine_generated_tokens_total") > 0
    pairs = "crossdock_engine_pairs"
    assert moved("prefill", f"{pairs}_handoffs_total") == 1
    assert moved("prefill", f"{pairs}_operations_total") > 0
    assert moved("prefill", f"{pairs}_written_bytes_total") > 0
    assert moved("prefill", f"{pairs}_exposed_seconds_total") > 0
    outcomes = "crossdock_handoff_outcomes_total"
    assert moved("prefill", outcomes, side="sender", outcome="commits") == 1
    assert moved("decode", outcomes, side="receiver", outcome="commits") == 1
    assert figure(after["decode"], "crossdock_pairs", state="ready", transport="shm") == 1
    assert figure(after["decode"], "crossdock_kv_blocks", state="cached") > 0
    assert figure(after["decode"], "crossdock_kv_blocks", state="owned") == 0


def test_what_is_kept_of_a_prompt_shows_at_the_store(fleet: Fleet) -> None:
    store, prefill = services(fleet, "kvstore")[0], services(fleet, "prefill")[0]

    def kept() -> list[float]:
        """Blocks that were published, that are there, and that the engine wrote."""
        figures = scrape(store)
        return [
            figure(figures, "crossdock_kvstore_published_blocks_total"),
            figure(figures, "crossdock_kv_blocks", state="cached"),
            figure(scrape(prefill), "crossdock_engine_store_blocks_written_total"),
        ]

    # Whole blocks, in the background; a store that is slow to answer is done without.
    num_blocks = len(PROMPT) // 32
    for number in range(TRIES_MAX):
        expected = [before + num_blocks for before in kept()]
        asyncio.run(one_request(fleet, [number, *PROMPT]))
        deadline_s = time.monotonic() + 10
        while kept() != expected and time.monotonic() < deadline_s:
            time.sleep(0.1)
        if kept() == expected:
            break
    else:
        pytest.fail(f"published, cached, written: {kept()}, expected {expected}")
    assert figure(scrape(store), "crossdock_pairs", state="ready") == 1


def test_the_page_lists_what_is_exported(fleet: Fleet) -> None:
    """Both ways; the fabric's rows are held to recorded devices by its own tests."""
    assert fleet.record is not None
    asyncio.run(one_request(fleet))
    exported: dict[str, Metric] = {}
    for service in fleet.record.services:
        exported |= scrape(service)
    of_fabric = "crossdock_fabric_"
    rows = {row for row in exported_rows(exported.values()) if not row.name.startswith(of_fabric)}
    assert rows == {row for row in documented_rows() if not row.name.startswith(of_fabric)}
    outcomes = exported["crossdock_handoff_outcomes"].samples
    assert {sample.labels["outcome"] for sample in outcomes} == documented_outcomes()


def test_a_refused_request_is_counted_by_its_code(fleet: Fleet) -> None:
    router = services(fleet, "router")[0]
    name = "crossdock_router_requests_total"
    before = figure(scrape(router), name, outcome="invalid_argument")

    async def refused() -> None:
        async with Caller(router_address(fleet)) as caller:
            with pytest.raises(Exception, match="temperature"):
                await caller.generate(PROMPT, sampling(1, temperature=-1.0))

    asyncio.run(refused())
    assert figure(scrape(router), name, outcome="invalid_argument") == before + 1
