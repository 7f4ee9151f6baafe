"""Each checker must fire when its invariant is broken, and only then."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import inference_pb2
from tests.sim import checkers
from tests.sim.callers import Outcome
from tests.sim.checkers import Breach, TenantWatch
from tests.sim.scenario import Ask, Fault, Scenario, draw
from tests.sim.simulation import Simulation, oracle

_SABOTAGED_SEEDS = 40


def _ask(**changes: Any) -> Ask:
    base = next(ask for ask in draw(1).asks if not ask.stop_token_ids)
    return replace(base, timeout_s=None, ignore_eos=True, max_tokens=4, min_tokens=0, **changes)


def _finished(**changes: Any) -> Outcome:
    outcome = Outcome(
        _ask(),
        reason=inference_pb2.FINISH_REASON_LENGTH,
        num_finishes=1,
        code=grpc.StatusCode.OK,
        num_endings=1,
    )
    outcome.tokens = oracle(outcome)
    for name, value in changes.items():
        setattr(outcome, name, value)
    return outcome


def _endings(*outcomes: Outcome, at_router: int = 1) -> list[Breach]:
    return checkers.every_accepted_request_ends_exactly_once(
        outcomes, {("router0#1", "r0"): at_router}
    )


def test_what_is_well_raises_no_alarm() -> None:
    outcome = _finished()
    assert not _endings(outcome)
    assert not checkers.errors_are_honest([outcome])
    assert not checkers.tokens_equal_the_oracle([outcome], oracle)


@pytest.mark.parametrize(
    "broken",
    [
        {"code": None, "num_endings": 0},
        {"num_endings": 2},
        {"num_finishes": 2},
        {"num_after_finish": 1},
        {"num_finishes": 0},
        {"code": grpc.StatusCode.RESOURCE_EXHAUSTED},
    ],
)
def test_every_accepted_request_ends_exactly_once_fires(broken: dict[str, Any]) -> None:
    assert _endings(_finished(**broken))


def test_two_ends_at_the_router_fire() -> None:
    assert _endings(_finished(), at_router=2)


@pytest.mark.parametrize("code", ["INTERNAL", "DEADLINE_EXCEEDED", "CANCELLED", "NOT_FOUND"])
def test_errors_are_honest_fires(code: str) -> None:
    assert checkers.errors_are_honest([_finished(code=grpc.StatusCode[code])])


def test_tokens_equal_the_oracle_fires() -> None:
    right = _finished()
    wrong = [right.tokens[0], right.tokens[1] + 1, *right.tokens[2:]]
    for broken in (
        {"tokens": wrong},
        {"tokens": right.tokens[:-1]},
        {"tokens": [*right.tokens, 1]},
        {"reason": inference_pb2.FINISH_REASON_STOP},
        {"tokens": wrong[:2], "num_finishes": 0, "code": grpc.StatusCode.UNAVAILABLE},
    ):
        assert checkers.tokens_equal_the_oracle([_finished(**broken)], oracle), broken


def test_tenants_never_share_blocks_fires() -> None:
    prompt = list(range(64))
    assert not checkers.tenants_never_share_blocks(prompt, 32, [prompt[:40]])
    assert checkers.tenants_never_share_blocks(prompt, 32, [prompt[:31]])
    assert checkers.tenants_never_share_blocks(prompt, 32, [])


def test_a_watch_sees_what_another_tenant_computed() -> None:
    asked = SimpleNamespace(request_id="a", attempt=1, token_ids=list(range(64)), tenant_salt=b"")
    answer = SimpleNamespace(cached_prompt_tokens=32, tokens=[])
    own, other = TenantWatch(b"own"), TenantWatch(b"other")
    for watch in (own, other):
        watch.request("/Prefill/Prefill", asked)
    own.request("/Prefill/Prefill", SimpleNamespace(**(vars(asked) | {"request_id": "b"})))
    for watch in (own, other):
        watch.response("/Prefill/Prefill", asked, answer)
    assert asked.tenant_salt == b"other"
    assert not own.breaches
    assert other.breaches


def _inspection(**changes: int) -> Any:
    names = ("owned", "quarantined", "cached", "sequences")
    counts = dict.fromkeys((*names, "handoffs", "sendings", "receiving", "operations"), 0)
    fields = {f"num_{name}": count for name, count in counts.items()}
    return SimpleNamespace(num_blocks=8, **({"num_free": 8, "table": ""} | fields | changes))


@pytest.mark.parametrize(
    "left",
    [
        *("num_owned", "num_quarantined", "num_sequences", "num_handoffs"),
        *("num_sendings", "num_receiving", "num_operations", "num_cached"),
    ],
)
def test_everything_drains_fires(left: str) -> None:
    drains = checkers.everything_drains_after_faults_stop
    assert not drains({"engine": _inspection()}, {}, {})
    assert drains({"engine": _inspection(**{left: 1})}, {}, {})
    assert drains({"engine": _inspection()}, {"router live requests": 1}, {})


@pytest.mark.parametrize("left", ["leases", "writing", "pinned", "retired", "quarantined"])
def test_everything_drains_fires_for_a_store(left: str) -> None:
    names = ("leases", "writing", "pinned", "retired", "quarantined")
    clean = {f"num_{name}": 0 for name in names}
    store: Any = SimpleNamespace(**(clean | {f"num_{left}": 1}))
    assert checkers.everything_drains_after_faults_stop({}, {}, {"kvstore": store})


def _slow_and_broken(seed: int, sabotage: str) -> Scenario:
    """Writes that take long, over pairs that break every 100 ms."""
    base = draw(seed, faults=False, sabotage=sabotage)
    names = {
        role: [instance.name for instance in base.instances if instance.role == role]
        for role in ("prefill", "decode")
    }
    pairs = [(p, d) for p in names["prefill"] for d in names["decode"]]
    faults = [
        Fault(0.1 * index, "break-pair", *pairs[index % len(pairs)], 0.1, 1, "drop", "any")
        for index in range(40 if pairs else 0)
    ]
    return replace(
        base,
        instances=tuple(
            replace(instance, config=instance.config | {"transport": "tcp"})
            for instance in base.instances
        ),
        faults=tuple(faults),
        bytes_per_s=200_000,
        delay_max_s=0.02,
        write_chunk_bytes=256,
    )


@pytest.mark.parametrize(
    ("sabotage", "checker"),
    [
        ("closing-proves-nothing", checkers.no_block_reused_while_an_operation_may_touch_it),
        ("fence-proves-nothing", checkers.commit_after_every_byte),
    ],
)
def test_a_broken_promise_of_the_transport_is_found_out(sabotage: str, checker: Any) -> None:
    for seed in range(_SABOTAGED_SEEDS):
        result = Simulation(_slow_and_broken(seed, sabotage)).run()
        if any(breach.rule == checker.__name__ for breach in result.breaches):
            return
    pytest.fail(f"{sabotage} went unseen through {_SABOTAGED_SEEDS} seeds")


@pytest.mark.parametrize("rule", ["block-reuse", "commit-before-bytes", "conservation", "assert"])
def test_what_the_world_finds_is_told_by_its_checker(rule: str) -> None:
    found: Any = [SimpleNamespace(rule=rule, engine=0, at_ns=1, text="found")]
    fired = [
        checker.__name__
        for checker in (
            checkers.no_block_reused_while_an_operation_may_touch_it,
            checkers.commit_after_every_byte,
            checkers.blocks_conserved,
            checkers.no_assertion_fails,
        )
        if checker(found)
    ]
    assert len(fired) == 1
