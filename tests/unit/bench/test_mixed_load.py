from __future__ import annotations

import pytest

from bench.mixed_load import WANTED_RATIO, Round, figures, overlapping_gaps, percentile_99


def test_gaps_that_overlap_the_wait_are_counted() -> None:
    times = [0.0, 1.0, 2.0, 5.0, 6.0]
    assert overlapping_gaps(times, 1.5, 4.0) == [1.0, 3.0]
    assert overlapping_gaps(times, 2.0, 5.0) == [3.0], "what only touches it is not"
    assert overlapping_gaps(times, 2.5, 3.0) == [3.0], "the wait may lie within one"
    assert overlapping_gaps([1.0], 0.0, 2.0) == []


def test_p99_is_one_of_the_values() -> None:
    assert percentile_99([7.0]) == 7.0
    assert percentile_99([float(i) for i in range(1, 101)]) == 99.0
    assert percentile_99([float(i) for i in range(1, 17)]) == 16.0


def test_ratios_are_paired_and_the_goal_is_printed() -> None:
    chunked = [Round(100.0, 9.0), Round(200.0, 8.0), Round(300.0, 7.0)]
    unchunked = [Round(1_000.0, 5.0), Round(1_200.0, 4.0), Round(2_400.0, 6.0)]
    p99, p99_without, first, first_without = figures(chunked, unchunked)
    assert (p99.value, p99.limit) == (200.0, 1_200.0)
    assert p99.ratio == pytest.approx(8.0), "the median of 10, 6 and 8"
    assert p99.wanted_ratio == WANTED_RATIO
    assert p99.is_met
    assert p99_without.value == 1_200.0
    assert (first.value, first_without.value) == (8.0, 5.0)
