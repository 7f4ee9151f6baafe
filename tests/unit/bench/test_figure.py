from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.figure import Figure, FigureError
from bench.figure_table import markdown
from bench.native_programs import ProgramError, find_programs, run_program

LINE = {"bench": "engine", "case": "prefill_512", "value": 60.0, "unit": "GFLOP/s", "p99": 1}


def test_a_line_survives_the_round_trip() -> None:
    figure = Figure.from_line(json.dumps({**LINE, "limit": 100.0, "ratio": 0.6}))
    assert Figure.from_line(figure.to_line()) == figure


def test_a_figure_without_a_limit_asks_for_nothing() -> None:
    figure = Figure.from_line(json.dumps(LINE))
    assert (figure.limit, figure.ratio, figure.wanted_ratio, figure.is_met) == (None,) * 4


@pytest.mark.parametrize(
    ("bench", "case", "wanted"),
    [
        ("engine", "prefill_512", 0.8),
        ("engine", "decode_attention_bf16", 0.85),
        ("scheduler", "decode, 64 running", 1.0),
        ("ttft", "512 tokens, four services", None),
    ],
)
def test_what_is_wanted_of_a_case(bench: str, case: str, wanted: float | None) -> None:
    def figure(ratio: float) -> Figure:
        return Figure(bench, case, 1.0, "x", 1.0, ratio)

    assert figure(1.0).wanted_ratio == wanted
    if wanted is not None:
        assert figure(wanted).is_met
        assert not figure(wanted - 0.01).is_met


def test_a_figure_may_say_itself_what_is_wanted() -> None:
    figure = Figure("peers", "prefill_512", 3.0, "tok/s", 1.0, 3.0, "llama.cpp q8_0", 2.5)
    assert figure.is_met
    assert Figure.from_line(figure.to_line()) == figure
    assert not Figure("peers", "prefill_512", 2.0, "tok/s", 1.0, 2.0, wanted=2.5).is_met


@pytest.mark.parametrize("line", ["", "text", "[]", "{}", '{"bench": "x", "case": "y"}'])
def test_another_line_is_an_error(line: str) -> None:
    with pytest.raises(FigureError, match="not a figure"):
        Figure.from_line(line)


def _program(folder: Path, text: str) -> Path:
    path = folder / "bench_sample"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_programs_are_found_by_name(tmp_path: Path) -> None:
    program = _program(tmp_path, "true")
    (tmp_path / "bench_notes.txt").write_text("not a program", encoding="utf-8")
    assert find_programs(tmp_path) == {"sample": program}


def test_a_program_that_fails_is_named(tmp_path: Path) -> None:
    program = _program(tmp_path, f"echo '{json.dumps(LINE)}'; exit 3")
    with pytest.raises(ProgramError, match="bench_sample ended with exit code 3"):
        list(run_program(program, []))


def test_a_markdown_row_says_whether_the_goal_is_met() -> None:
    met = Figure("peers", "prefill_512", 1_234.5, "tok/s", 400.0, 3.086, "llama.cpp q8_0", 2.5)
    alone = Figure("peers", "start", 0.5, "s")
    header, _, first, second = markdown([met, alone]).splitlines()
    assert header.startswith("| bench | case | value |")
    assert first == (
        "| peers | prefill_512 | 1234 | tok/s | 400 | 3.09 | 2.5 | llama.cpp q8_0 | met |"
    )
    assert second == "| peers | start | 0.5 | s |  |  |  |  |  |"
