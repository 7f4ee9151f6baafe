"""The table behind every retry has an answer for every error."""

from __future__ import annotations

import pytest

from crossdock.errors import (
    Code,
    CrossdockError,
    Reason,
    engine_restarted,
    handoff_refused,
    internal,
    invalid_argument,
    layout_mismatch,
)
from services.router.verdict import Kind, judge
from services.router.worker import PAIR_BROKEN, Role

PREFILL, DECODE = Role.PREFILL, Role.DECODE


def error(code: Code, reason: str) -> CrossdockError:
    return CrossdockError(code, "x", reason)


@pytest.mark.parametrize("role", Role)
def test_what_can_pass_is_never_fatal_and_names_an_instance(role: Role) -> None:
    for code in (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED):
        for reason in [*Reason, PAIR_BROKEN, "UNHEARD_OF"]:
            verdict = judge(role, error(code, reason))
            assert verdict.kind is not Kind.FATAL
            assert verdict.at_fault or verdict.kind is Kind.MISMATCHED


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    "failure", [invalid_argument("f", "x"), internal("x"), error(Code.DATA_LOSS, "x")]
)
def test_what_will_not_pass_is_fatal(role: Role, failure: CrossdockError) -> None:
    assert judge(role, failure).kind is Kind.FATAL


@pytest.mark.parametrize("role", Role)
def test_a_mismatch_is_nobodys_fault(role: Role) -> None:
    verdict = judge(role, layout_mismatch("strides differ"))
    assert (verdict.kind, verdict.at_fault) == (Kind.MISMATCHED, ())


def test_an_invalid_argument_needs_no_second_opinion() -> None:
    assert judge(PREFILL, invalid_argument("f", "x")).grace_s == 0
    assert judge(PREFILL, internal("x")).grace_s > 0


def test_the_decode_stream_is_the_truth_and_waits_for_nothing() -> None:
    for code in Code:
        for reason in Reason:
            assert judge(DECODE, error(code, reason)).grace_s == 0


def test_once_it_streams_only_the_decode_instance_can_be_at_fault() -> None:
    for failure in (engine_restarted("x"), handoff_refused("x"), error(Code.CANCELLED, "x")):
        verdict = judge(DECODE, failure, streaming=True)
        assert (verdict.kind, verdict.at_fault) == (Kind.LOST, (DECODE,))
    assert judge(DECODE, internal("x"), streaming=True).kind is Kind.FATAL


def test_a_handoff_that_is_not_known_there_is_tried_again() -> None:
    error = CrossdockError(Code.NOT_FOUND, "the decode instance refused", Reason.INTERNAL)
    verdict = judge(Role.PREFILL, error)
    assert verdict.kind is Kind.LOST
    assert verdict.grace_s > 0
