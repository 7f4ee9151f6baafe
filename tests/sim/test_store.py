"""The kvstore in the simulation: it is used, what is bad in it is found, and its alarms fire."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from crossdock import _native as native
from services.kvstore.tier import Tier
from tests.sim import checkers, fleet
from tests.sim.native import crossdock_sim
from tests.sim.scenario import Fault, Scenario, StoreInstance, draw, with_store
from tests.sim.simulation import Simulation

_SEEDS = 20
_STORE = StoreInstance("kvstore", "shared", False, 64, "auto", None)
_PROMPT = tuple(8 + index % 50 for index in range(200))


def _one_prompt(transport: str, *faults: Fault, seed: int = 0) -> Scenario:
    """Two prefill instances that are asked for one prompt again and again, a second apart."""
    base = next(s for s in (draw(n, faults=False) for n in range(200)) if _num_prefill(s) == 2)
    ask = replace(
        base.asks[0],
        tenant=0,
        prompt=_PROMPT,
        max_tokens=8,
        min_tokens=0,
        timeout_s=None,
        cancel_after_s=None,
        abort_after_s=None,
    )
    asks = tuple(replace(ask, request_id=f"r{n}", at_s=float(n)) for n in range(8))
    scenario = with_store(replace(base, seed=seed, num_tenants=1), Random(seed))
    instances = tuple(
        replace(
            instance,
            host="shared",
            num_blocks=64,
            config=instance.config | {"transport": transport, "num_sequences_max": 16},
        )
        for instance in scenario.instances
    )
    store = replace(_STORE, transport=transport)
    return replace(scenario, instances=instances, asks=asks, store=store, faults=faults)


def _num_prefill(scenario: Scenario) -> int:
    return sum(instance.role == "prefill" for instance in scenario.instances)


def _fault(at_s: float, kind: str, count: int = 1) -> Fault:
    return Fault(at_s, kind, "kvstore", "prefill0", 0.1, count, "", "")


def test_a_block_that_one_instance_stored_is_read_by_another() -> None:
    result = Simulation(_one_prompt("auto")).run()
    assert not result.breaches
    assert result.counts["store blocks written"] > 0
    assert result.counts["store blocks read"] > 0


def test_what_is_corrupted_in_the_store_is_dropped_and_counted() -> None:
    result = Simulation(_one_prompt("auto", _fault(0.9, "corrupt-store", count=400))).run()
    assert not result.breaches
    assert result.counts["store blocks bad"] > 0
    assert result.counts["store blocks dropped"] == result.counts["store blocks bad"]


# ---- alarms


def _rules(scenario: Scenario, word: str) -> set[str]:
    """The rules that were broken, as far as what tells of it has that word."""
    return {breach.rule for breach in Simulation(scenario).run().breaches if word in breach.text}


def _free_with_the_pair(tier: Tier, owner_epoch: int) -> None:
    tier._require_index().owner_gone(owner_epoch)


def _free_what_ran_out(tier: Tier, now_ms: int) -> int | None:
    statistics = tier.statistics()
    if statistics is not None and statistics.num_writing:
        for owner_epoch in tier._owners:
            tier._require_index().owner_gone(owner_epoch)
    return now_ms + 2 if statistics is not None else None


@pytest.mark.parametrize(
    ("name", "mutant"), [("part", _free_with_the_pair), ("expire", _free_what_ran_out)]
)
def test_a_store_that_frees_what_may_still_be_written_is_found_out(
    name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tier, name, mutant)
    rule = checkers.no_block_reused_while_an_operation_may_touch_it.__name__
    for seed in range(_SEEDS):
        resets = [_fault(n + 0.02 * seed, "reset") for n in range(8)]
        scenario = _one_prompt("auto", *resets, seed=seed)
        asks = tuple(
            replace(ask, prompt=_PROMPT[index:]) for index, ask in enumerate(scenario.asks)
        )
        if rule in _rules(replace(scenario, asks=asks, bytes_per_s=200_000), "has passed"):
            return
    pytest.fail(f"it went unseen through {_SEEDS} seeds")


def test_a_commit_before_the_bytes_are_in_is_found_out() -> None:
    for seed in range(_SEEDS):
        scenario = replace(
            _one_prompt("tcp", seed=seed),
            sabotage="fence-proves-nothing",
            bytes_per_s=200_000,
            delay_max_s=0.02,
            write_chunk_bytes=256,
        )
        if checkers.commit_after_every_byte.__name__ in _rules(scenario, "of a kvstore"):
            return
    pytest.fail(f"it went unseen through {_SEEDS} seeds")


class _SwappedBlocks:
    """A Tap that puts the bytes of two blocks, with their checksums, under each other's hash."""

    def __init__(self, lease_ms: int) -> None:
        del lease_ms

    def request(self, method: str, request: Any) -> None:
        if method.endswith("/Commit") and len(request.blocks) > 1:
            first, second = request.blocks[0], request.blocks[1]
            first.checksum, second.checksum = second.checksum, first.checksum

    def response(self, method: str, request: Any, response: Any) -> None:
        del request
        if method.endswith("/Reserve") and len(response.blocks) > 1:
            first, second = response.blocks[0], response.blocks[1]
            first.offset_bytes, second.offset_bytes = second.offset_bytes, first.offset_bytes


def test_a_block_of_the_store_that_is_another_gives_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "ShortLeases", _SwappedBlocks)
    scenario = replace(_one_prompt("auto"), store=replace(_STORE, lease_ms=1))
    assert checkers.tokens_equal_the_oracle.__name__ in _rules(scenario, "")


def _store_of(index: native.BlockStore) -> list[str]:
    """What a world says of a store of two slots that has this index."""
    world = crossdock_sim.World(1)
    stride_bytes = crossdock_sim.BLOCK_STRIDE_BYTES
    segment = world.add_store(host="host", transport="tcp", epoch=7, segment_bytes=2 * stride_bytes)
    segment.watch(index, stride_bytes, stride_bytes)
    world.check()
    return [violation.rule for violation in world.violations()]


def test_an_index_that_does_not_fit_is_found_out(capfd: pytest.CaptureFixture[str]) -> None:
    assert _store_of(native.BlockStore(num_blocks=2)) == []
    assert _store_of(native.BlockStore(num_blocks=3)) == ["conservation"]
    assert "do not fit" in capfd.readouterr().err


def test_a_published_block_without_its_bytes_is_found_out() -> None:
    index = native.BlockStore(num_blocks=2)
    lease = index.reserve([1, 2], owner_epoch=5, ttl_ticks=10, tick=0)
    index.commit(lease.lease_id, [1, 2, 3, 4])
    assert _store_of(index) == ["commit-before-bytes"]
