from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import invariance
from bench.figure import Figure
from bench.peer_programs import PeerError

# Our product in order, and the one row that is free, in GFLOP/s.
OURS = {"product_f32_1": 12.0, "product_f32_1_free": 15.0, "product_f32_512": 90.0}


def _engine() -> Iterator[tuple[str, Figure]]:
    for case, value in OURS.items():
        yield "", Figure("engine", case, value, "GFLOP/s")


def test_the_ordered_product_stands_beside_each_that_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invariance, "torch_gflops", lambda _threads: [6.0, 40.0, 100.0])
    missed: list[PeerError] = []
    figures = list(invariance.measure(_engine, 1, missed.append))
    assert not missed
    assert [(f.case, f.against, f.ratio) for f in figures] == [
        ("f32 product, rows: 1, 1 thread", "crossdock f32 in any order", 0.8),
        ("f32 product, rows: 1, 1 thread", "torch f32", 2.0),
        ("f32 product, rows: 512, 1 thread", "torch f32", 0.9),
    ]


def test_without_torch_ours_are_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_threads: int) -> list[float]:
        raise PeerError("torch not found")

    monkeypatch.setattr(invariance, "torch_gflops", absent)
    missed: list[str] = []
    figures = list(invariance.measure(_engine, 2, lambda error: missed.append(str(error))))
    assert [f.against for f in figures] == ["crossdock f32 in any order"]
    assert set(missed) == {"torch not found"}


def test_an_interpreter_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PYTHON", "/bin/false")
    with pytest.raises(PeerError, match="ended with 1"):
        invariance.torch_gflops(1)
