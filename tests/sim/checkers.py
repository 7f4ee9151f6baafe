"""The invariants of DESIGN §5, each a function that tells what breaks it.

The world itself watches the first two and the conservation of blocks at every step; the others are
asked at the end, or of every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from crossdock import _native as native
from crossdock.api.v1 import inference_pb2
from tests.sim.callers import Outcome
from tests.sim.native import crossdock_sim

if TYPE_CHECKING:
    from tests.sim.crossdock_sim import Inspection, Violation

Oracle = Callable[[Outcome], list[int]]

# What a caller may be answered with while things fail. Anything else is a bug that shows.
_HONEST: Final = {
    grpc.StatusCode.OK,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}


@dataclass(frozen=True)
class Breach:
    """An invariant that did not hold."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def no_block_reused_while_an_operation_may_touch_it(found: Sequence[Violation]) -> list[Breach]:
    return _native("block-reuse", no_block_reused_while_an_operation_may_touch_it, found)


def commit_after_every_byte(found: Sequence[Violation]) -> list[Breach]:
    return _native("commit-before-bytes", commit_after_every_byte, found)


def blocks_conserved(found: Sequence[Violation]) -> list[Breach]:
    return _native("conservation", blocks_conserved, found)


def no_assertion_fails(found: Sequence[Violation]) -> list[Breach]:
    known = {"block-reuse", "commit-before-bytes", "conservation"}
    return [
        Breach(no_assertion_fails.__name__, f"{v.rule}, engine {v.engine}: {v.text}")
        for v in found
        if v.rule not in known
    ]


def _native(
    rule: str, checker: Callable[[Sequence[Violation]], list[Breach]], found: Sequence[Violation]
) -> list[Breach]:
    return [
        Breach(checker.__name__, f"engine {v.engine}: {v.text}") for v in found if v.rule == rule
    ]


def every_accepted_request_ends_exactly_once(
    outcomes: Iterable[Outcome], endings_at_router: Mapping[tuple[str, str], int]
) -> list[Breach]:
    """A finish message and OK, or one error; `endings_at_router` counts by process and id."""
    breaches = []

    def broken(text: str) -> None:
        breaches.append(Breach(every_accepted_request_ends_exactly_once.__name__, text))

    for outcome in outcomes:
        name = outcome.ask.request_id
        if outcome.gone:
            continue
        if outcome.code is None:
            broken(f"{name} never ended")
        elif outcome.num_endings != 1 or outcome.num_finishes > 1 or outcome.num_after_finish:
            broken(f"{name} ended {outcome.num_endings} times, finished {outcome.num_finishes}")
        elif (outcome.code is grpc.StatusCode.OK) and outcome.num_finishes != 1:
            broken(f"{name} is OK without a finish")
        elif outcome.num_finishes and outcome.code not in (
            grpc.StatusCode.OK,
            *(grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED),
            grpc.StatusCode.UNAVAILABLE,
        ):
            broken(f"{name} finished and then failed with {outcome.code}")
    for (process, name), count in endings_at_router.items():
        if count != 1:
            broken(f"{process} ended {name} {count} times")
    return breaches


def errors_are_honest(outcomes: Iterable[Outcome]) -> list[Breach]:
    """No bug reaches a caller, and nobody is told of a deadline or cancel that was not theirs."""
    return [
        Breach(errors_are_honest.__name__, f"{o.ask.request_id}: {o.code} {o.details}")
        for o in outcomes
        if o.code is not None
        and (
            o.code not in _HONEST
            or (o.code is grpc.StatusCode.DEADLINE_EXCEEDED and o.ask.timeout_s is None)
            or (o.code is grpc.StatusCode.CANCELLED and not o.cancelled)
        )
    ]


def tokens_equal_the_oracle(outcomes: Iterable[Outcome], oracle: Oracle) -> list[Breach]:
    """Whatever a caller got is a beginning of the oracle's tokens; all of them, if it finished."""
    breaches = []
    for outcome in outcomes:
        expected = oracle(outcome)
        got = outcome.tokens
        whole = outcome.num_finishes and outcome.reason != inference_pb2.FINISH_REASON_ABORT
        right = got == expected if whole else got == expected[: len(got)]
        length = len(got) == outcome.ask.max_tokens and not _stopped(outcome, expected)
        reason = inference_pb2.FINISH_REASON_LENGTH if length else inference_pb2.FINISH_REASON_STOP
        if not right or (whole and outcome.reason != reason):
            breaches.append(
                Breach(
                    tokens_equal_the_oracle.__name__,
                    f"{outcome.ask.request_id} got {got} ({outcome.reason}), not {expected}",
                )
            )
    return breaches


def _stopped(outcome: Outcome, expected: list[int]) -> bool:
    ask = outcome.ask
    stops = set(ask.stop_token_ids) | (set() if ask.ignore_eos else {crossdock_sim.EOS_TOKEN_ID})
    return bool(expected) and expected[-1] in stops and len(expected) > ask.min_tokens


class TenantWatch:
    """A Tap on what the routers of one tenant ask of workers and are answered."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        # By request and attempt: the prompt, and what was generated after it as far as it is known.
        self._sequences: dict[tuple[str, int], list[int]] = {}
        self.breaches: list[Breach] = []

    def request(self, method: str, request: Any) -> None:
        if method.endswith(("/Prefill", "/Generate")):
            request.tenant_salt = self._salt
            key = (request.request_id, request.attempt)
            self._sequences.setdefault(key, list(request.token_ids))

    def response(self, method: str, request: Any, response: Any) -> None:
        if not method.endswith(("/Prefill", "/Generate")):
            return
        key = (request.request_id, request.attempt)
        others = [tokens for other, tokens in self._sequences.items() if other != key]
        self.breaches += tenants_never_share_blocks(
            list(request.token_ids), response.cached_prompt_tokens, others
        )
        if method.endswith("/Generate"):
            self._sequences[key].extend(token.token_id for token in response.tokens)


def tenants_never_share_blocks(
    prompt: list[int], num_cached: int, same_tenant: Iterable[list[int]]
) -> list[Breach]:
    """A worker may find in its cache only what it computed for the same tenant before."""
    longest = max((_common(prompt, other) for other in same_tenant), default=0)
    if num_cached <= longest:
        return []
    text = f"{num_cached} tokens of a prompt were cached, the tenant had computed {longest}"
    return [Breach(tenants_never_share_blocks.__name__, text)]


def _common(a: list[int], b: list[int]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def everything_drains_after_faults_stop(
    engines: Mapping[str, Inspection],
    held: Mapping[str, int],
    stores: Mapping[str, native.BlockStoreStatistics],
) -> list[Breach]:
    """Nothing is held by an engine, of what fronts and routers count (`held`), or in a kvstore."""
    rule = everything_drains_after_faults_stop.__name__
    breaches = [Breach(rule, f"{name}: {count}") for name, count in held.items() if count]
    for name, engine in engines.items():
        left = {
            "owned": engine.num_owned,
            "quarantined": engine.num_quarantined,
            "sequences": engine.num_sequences,
            "receiving": engine.num_receiving,
            "handoffs": engine.num_handoffs,
            "sendings": engine.num_sendings,
            "operations": engine.num_operations,
        }
        left = {what: count for what, count in left.items() if count}
        if left or engine.num_free + engine.num_cached != engine.num_blocks:
            breaches.append(Breach(rule, f"{name} holds {left}: {engine.table}"))
    for name, store in stores.items():
        left = {
            "leases": store.num_leases,
            "writing": store.num_writing,
            "pinned": store.num_pinned,
            "retired": store.num_retired,
            "quarantined": store.num_quarantined,
        }
        left = {what: count for what, count in left.items() if count}
        if left:
            breaches.append(Breach(rule, f"{name} holds {left}"))
    return breaches
