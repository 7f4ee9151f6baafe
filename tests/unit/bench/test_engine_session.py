"""A session with programs that are shell scripts, as the real ones are run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import engine_session, perplexity
from bench.engine_session import Session, Turns
from bench.pairs import FORMATS
from bench.peer_programs import LlamaPrograms

LLAMA_BENCH = (
    r'{"n_prompt": 512, "n_gen": 0, "avg_ts": 100.0}\n'
    r'{"n_prompt": 2048, "n_gen": 0, "avg_ts": 80.0}\n'
    r'{"n_prompt": 0, "n_gen": 128, "avg_ts": 50.0}\n'
)


def _program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def _line(case: str, value: float, **more: float) -> str:
    limits = {"limit": 2 * value, "ratio": 0.5, "gflop": 100.0, "fma_gflops": 100.0}
    fields = {"bench": "engine", "case": case, "value": value, "unit": "tok/s", **limits, **more}
    return json.dumps(fields)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Eight-bit weights, one machine for all. The engine does everything at 300 tokens/s."""
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setattr(engine_session, "gguf_file", lambda name: tmp_path / f"{name}.gguf")
    monkeypatch.setattr(perplexity, "of_llama", lambda *_: {"f32": 10.0, "q8_0": 10.05})
    ours = {"f32": 10.0, "int8": 10.001, "fp8": 10.5}
    monkeypatch.setattr(perplexity, "of_crossdock", lambda *_: ours)
    lines = [_line(case, 300.0) for case in ("decode_one_stream", "decode_16_streams")]
    lines.append(_line("prefill_512", 300.0, integer_gops=200.0))
    text = "\n".join(lines)
    engine = _program(tmp_path / "bench_engine", f"cat <<'E'\n{text}\nE")
    _program(tmp_path / "llama-bench", f"printf '{LLAMA_BENCH}'")
    return Session(
        programs={"engine": engine},
        llama=LlamaPrograms.find({"LLAMA_BIN": str(tmp_path)}),
        model=tmp_path,
        formats=[FORMATS[2]],
        kernels="auto",
        log=tmp_path / "rounds.jsonl",
    )


def test_pairs_limits_and_what_was_not_measured(session: Session) -> None:
    session.pair_formats(Turns(threads=1, num_rounds=2, with_vllm=True))
    rows = {(f.case, f.against): f for f in session.figures}
    paired = rows["prefill_512, 8 bit (int8), 1 thread", "llama.cpp q8_0"]
    assert (paired.ratio, paired.wanted, paired.is_met) == (3.0, 2.5, True)
    limit = rows["prefill_512, int8, 1 thread", "limit"]
    assert (limit.limit, limit.ratio, limit.wanted, limit.is_met) == (600.0, 0.5, 0.8, False)
    integer = rows["prefill_512, int8, 1 thread", "integer peak"]
    assert (integer.limit, integer.ratio, integer.wanted) == (1_200.0, 0.25, None)
    assert session.not_measured == {
        "llama.cpp q8_0 decode_16_streams": "llama-batched-bench not found: "
        "set LLAMA_BIN to the folder that holds it"
    }
    # Every line of the engine is kept: two dtypes, two rounds, three cases.
    assert len(session.log.read_text(encoding="utf-8").splitlines()) == 12


def test_a_peer_that_loses_quality_is_not_its_best(session: Session) -> None:
    session.pair_formats(Turns(threads=1, num_rounds=1, with_vllm=False))
    assert not [f for f in session.figures if ", best" in f.case]
    assert session.lossless == {"crossdock": ["f32", "int8"], "llama.cpp": ["f32"], "vLLM": []}


def test_vllm_is_named_when_it_is_not_there(session: Session) -> None:
    session.formats = [FORMATS[0]]
    session.pair_formats(Turns(threads=1, num_rounds=1, with_vllm=True))
    assert "set VLLM_PYTHON" in session.not_measured["vLLM"]
