from __future__ import annotations

import pytest

from bench.figure import Figure
from bench.handoff_peers import PEERS, medians


def _figure(case: str, value: float, limit: float | None = None) -> Figure:
    ratio = None if limit is None else value / limit
    return Figure("handoff", case, value, "GB/s", limit, ratio, wanted=0.95)


def test_a_case_is_the_median_of_its_rounds() -> None:
    rounds = [
        [_figure("crossdock", 10.0, 10.0), _figure("memcpy", 10.0)],
        [_figure("crossdock", 4.0, 8.0), _figure("memcpy", 8.0)],
        [_figure("crossdock", 9.0, 12.0)],
    ]
    ours, memcpy = medians(rounds)
    assert (ours.value, ours.limit) == (9.0, 10.0)
    # Of the pairs' ratios: 9 of 10 would be another one.
    assert ours.ratio == pytest.approx(0.75)
    assert (memcpy.value, memcpy.ratio) == (9.0, None)


def test_every_peer_has_a_script_and_names_what_it_uses() -> None:
    for peer in PEERS:
        assert peer.script.is_file()
        assert peer.row.count(", ") == 2
