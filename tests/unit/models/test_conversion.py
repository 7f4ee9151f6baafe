"""Every type of weights: what it costs, and that the default model loses nothing in 4 bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossdock.cli.main import app
from crossdock.models.conversion import convert, held_out_text
from crossdock.models.errors import ModelError
from crossdock.models.packed import packed_directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return packed_directory()


def test_the_command_prints_every_type(tiny_model: Path, cache: Path) -> None:
    done = CliRunner().invoke(app, ["model", "convert", str(tiny_model), "--tokens", "200"])
    assert done.exit_code == 0, done.output
    rows = {
        cells[0]: cells[1:]
        for line in done.output.splitlines()
        if len(cells := re.split(r"\s*│\s*", line.strip(" │"))) == 7
    }
    assert list(rows) == ["f32", "bf16", "fp8", "int8", "int4"]
    bits = {dtype: float(cells[2]) for dtype, cells in rows.items()}
    assert bits["f32"] == pytest.approx(32, rel=0.01)
    assert bits["bf16"] == pytest.approx(16, rel=0.01)
    assert bits["fp8"] < bits["bf16"]
    assert bits["int4"] < bits["int8"] == pytest.approx(8.5, rel=0.01)
    assert rows["f32"][3] == "100.00%"
    assert rows["f32"][5] == "+0.000%"
    perplexities = {dtype: float(cells[4]) for dtype, cells in rows.items()}
    assert perplexities["int8"] == pytest.approx(perplexities["f32"], rel=0.2)
    kept = sorted(path.name.split("-")[1] for path in cache.iterdir())
    assert kept == ["fp8.packed", "int4.packed", "int8.packed"]
    assert [rows[dtype][1] == "not kept" for dtype in rows] == [True, True, False, False, False]


def test_a_type_that_is_none_is_named(tiny_model: Path) -> None:
    done = CliRunner().invoke(app, ["model", "convert", str(tiny_model), "--to", "int5"])
    assert done.exit_code == 2
    assert all(word in done.output for word in ("--to", "int5", "int8", "int4"))


def test_what_the_engine_says_of_the_model_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="architectures"):
        convert(tmp_path, "int8", [], 1)


def test_a_model_may_bring_its_own_text(tmp_path: Path) -> None:
    assert len(held_out_text(tmp_path)) > 100_000
    (tmp_path / "heldout.txt").write_text("another")
    assert held_out_text(tmp_path) == "another"


@pytest.mark.model
def test_four_bits_hold_the_default_model_to_the_bit(default_model: Path) -> None:
    conversion = convert(default_model, "int4", [], 2)
    assert conversion.num_weights == 134_479_872
    assert conversion.num_exact == conversion.num_weights
    assert conversion.bits_per_weight < 6
