from __future__ import annotations

import pytest

from bench.pairs import (
    DECODE_ONE,
    DECODE_SIXTEEN,
    FORMATS,
    LLAMA,
    OURS,
    VLLM,
    Rounds,
    Subject,
    best_figures,
    format_figures,
    lossless,
)

F32 = FORMATS[0]


def _rounds(values: dict[tuple[str, str, str], list[float]]) -> Rounds:
    rounds = Rounds(threads=2)
    for (program, dtype, case), measured in values.items():
        for value in measured:
            rounds.add(Subject(program, dtype), case, value)
    return rounds


def test_a_ratio_pairs_the_rounds_that_ran_together() -> None:
    # A slow second round meets both sides: the ratio is 2 in each, though no median is.
    rounds = _rounds(
        {
            (OURS, "f32", "prefill_512"): [200.0, 20.0, 220.0],
            (LLAMA, "f32", "prefill_512"): [100.0, 10.0, 110.0],
        }
    )
    (figure,) = format_figures(rounds, F32)
    assert figure.ratio == pytest.approx(2.0)
    assert (figure.value, figure.limit, figure.wanted) == (200.0, 100.0, 1.5)
    assert figure.case == "prefill_512, f32 (f32), 2 threads"
    assert figure.against == "llama.cpp f32"
    assert figure.is_met


def test_a_goal_that_is_not_reached_is_below() -> None:
    rounds = _rounds(
        {
            (OURS, "int8", "prefill_2048"): [240.0],
            (LLAMA, "q8_0", "prefill_2048"): [100.0],
        }
    )
    (figure,) = format_figures(rounds, FORMATS[2])
    assert figure.wanted == 2.5
    assert figure.is_met is False


def test_what_was_not_measured_gives_no_figure() -> None:
    rounds = _rounds({(OURS, "f32", "prefill_512"): [1.0]})
    assert list(format_figures(rounds, F32)) == []


def test_a_peer_is_compared_in_its_own_format_without_a_goal() -> None:
    rounds = _rounds(
        {
            (OURS, "f32", DECODE_ONE): [3.0],
            (LLAMA, "f32", DECODE_ONE): [2.0],
            (VLLM, "float32", DECODE_ONE): [1.0],
        }
    )
    llama, vllm = format_figures(rounds, F32)
    assert (llama.against, llama.wanted) == ("llama.cpp f32", None)
    assert (vllm.against, vllm.ratio) == ("vLLM float32", 3.0)


def test_the_best_of_each_side_is_compared_among_what_loses_nothing() -> None:
    rounds = _rounds(
        {
            (OURS, "int4", DECODE_ONE): [150.0],
            (OURS, "int8", DECODE_ONE): [120.0],
            (LLAMA, "q4_0", DECODE_ONE): [140.0],
            (LLAMA, "q8_0", DECODE_ONE): [100.0],
            (OURS, "int8", DECODE_SIXTEEN): [500.0],
            (LLAMA, "q8_0", DECODE_SIXTEEN): [400.0],
        }
    )
    kept = lossless({"f32": 10.0, "q8_0": 10.009, "q4_0": 10.2})
    assert kept == ["f32", "q8_0"]
    one, sixteen = best_figures(rounds, ["int8", "int4"], {LLAMA: kept})
    assert (one.ratio, one.wanted, one.against) == (1.5, 1.4, "llama.cpp q8_0")
    assert "int4" in one.case
    assert (sixteen.ratio, sixteen.wanted, sixteen.is_met) == (1.25, 1.8, False)
