"""The witness itself: a slow product is told, a busy machine is asked again."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.faults import witness
from tests.faults.summary import Summary

_STOOD_S = 0.2


@pytest.fixture(autouse=True)
def summary(monkeypatch: pytest.MonkeyPatch) -> Summary:
    """What these tests make up belongs in no summary."""
    own = Summary()
    monkeypatch.setattr(witness, "SUMMARY", own)
    return own


def measured(*results: tuple[float, float]) -> Callable[[], Awaitable[tuple[float, float]]]:
    """Gives one after the other; one more is an error."""
    left = iter(results)

    async def measure() -> tuple[float, float]:
        return next(left)

    return measure


def test_a_miss_while_the_machine_had_time_fails() -> None:
    with pytest.raises(AssertionError, match=r"1\.50 s instead of 1; the machine stood for 3 ms"):
        asyncio.run(witness.keeps(1.0, measured((1.5, _STOOD_S), (1.5, 0.003))))


def test_a_miss_while_the_machine_stood_is_measured_again(summary: Summary) -> None:
    asyncio.run(witness.keeps(1.0, measured((1.5, _STOOD_S), (0.5, _STOOD_S))))
    assert summary.lines == ["1.50 s instead of 1; the machine stood for 200 ms"]


def test_a_machine_that_always_stands_is_no_failure_of_the_product(summary: Summary) -> None:
    asyncio.run(witness.keeps(1.0, measured(*[(1.5, _STOOD_S)] * 4)))
    assert len(summary.lines) == 4


def test_a_witness_sees_that_it_stood() -> None:
    before_s = sys.getswitchinterval()
    with witness.Witness() as stands:
        sys.setswitchinterval(2 * _STOOD_S)
        try:
            until_s = time.monotonic() + _STOOD_S
            while time.monotonic() < until_s:
                pass  # Holds what the witness needs to run.
        finally:
            sys.setswitchinterval(before_s)
    assert stands.stood_s > _STOOD_S / 2
