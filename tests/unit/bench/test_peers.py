from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.llama_cpp import LlamaRun, system_info
from bench.peer_programs import LlamaPrograms, PeerError, peer_python
from bench.vllm_cpu import vllm_run

# What the programs print, shortened to the fields that are read and one that is not.
BENCH = (
    r'{"n_prompt": 128, "n_gen": 0, "avg_ts": 90.0, "build_number": 1}\n'
    r'{"n_prompt": 512, "n_gen": 0, "avg_ts": 277.5, "build_number": 1}\n'
    r'{"n_prompt": 0, "n_gen": 128, "avg_ts": 97.25, "build_number": 1}\n'
)
BATCHED = r'main: warm-up\n{"pp": 128, "tg": 32, "pl": 16, "speed_tg": 217.5, "t": 3.7}\n'
INFO = "system_info: n_threads = 2 (n_threads_batch = 2) / 2 | CPU : AVX2 = 1 | AVX512 = 1 | "


def _program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def _run(folder: Path) -> LlamaRun:
    programs = LlamaPrograms.find({"LLAMA_BIN": str(folder), "PATH": "/nowhere"})
    return LlamaRun(programs, folder / "model.gguf", threads=1)


def test_each_case_reads_the_speed_of_its_own_test(tmp_path: Path) -> None:
    _program(tmp_path, "llama-bench", f"printf '{BENCH}'")
    _program(tmp_path, "llama-batched-bench", f"printf '{BATCHED}'")
    run = _run(tmp_path)
    assert run.measure("prefill_512") == 277.5
    assert run.measure("decode_one_stream") == 97.25
    assert run.measure("decode_16_streams") == 217.5
    with pytest.raises(PeerError, match="no test of 2048"):
        run.measure("prefill_2048")


def test_a_program_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="llama-bench not found: set LLAMA_BIN"):
        _run(tmp_path).measure("prefill_512")


def test_a_program_that_fails_says_its_last_words(tmp_path: Path) -> None:
    _program(tmp_path, "llama-bench", "echo 'no such model' >&2; exit 3")
    with pytest.raises(PeerError, match="ended with 3: no such model"):
        _run(tmp_path).measure("prefill_512")


def test_output_of_another_kind_is_an_error(tmp_path: Path) -> None:
    _program(tmp_path, "llama-bench", "echo nonsense")
    _program(tmp_path, "llama-batched-bench", "echo nonsense")
    with pytest.raises(PeerError, match="nonsense"):
        _run(tmp_path).measure("prefill_512")
    with pytest.raises(PeerError, match="no result"):
        _run(tmp_path).measure("decode_16_streams")


def test_what_llama_cpp_was_compiled_for(tmp_path: Path) -> None:
    _program(tmp_path, "llama-completion", f"echo '{INFO}' >&2")
    programs = LlamaPrograms.find({"LLAMA_BIN": str(tmp_path)})
    assert system_info(programs, tmp_path / "m.gguf") == "CPU : AVX2 = 1 | AVX512 = 1"


@pytest.mark.parametrize(
    ("peer", "variable"),
    [("vllm", "VLLM_PYTHON"), ("nixl", "NIXL_PYTHON"), ("mooncake", "MOONCAKE_PYTHON")],
)
def test_the_interpreter_of_a_peer_must_be_named_and_there(
    tmp_path: Path, peer: str, variable: str
) -> None:
    with pytest.raises(PeerError, match=f"{peer} not found: set {variable}"):
        peer_python(peer, {})
    with pytest.raises(PeerError, match="is no file"):
        peer_python(peer, {variable: str(tmp_path / "python")})
    assert peer_python(peer, {variable: sys.executable}) == Path(sys.executable)


def _answering(folder: Path, body: str) -> Path:
    """Stands in for the interpreter: it ignores the script that it is given."""
    (folder / "bin").mkdir()
    _program(folder / "bin", "python", body)
    return folder / "bin" / "python"


def test_vllm_answers_each_case_with_a_line(tmp_path: Path) -> None:
    python = _answering(
        tmp_path, "echo 'INFO loading'; echo ready; while read case; do echo noise; echo 12.5; done"
    )
    with vllm_run(python, tmp_path, "float32", 1, tmp_path / "log") as run:
        assert run.measure("prefill_512") == 12.5
        assert run.measure("decode_one_stream") == 12.5


def test_vllm_that_cannot_start_says_why(tmp_path: Path) -> None:
    python = _answering(tmp_path, "echo 'no module named vllm' >&2; exit 1")
    with (
        pytest.raises(PeerError, match="no module named vllm"),
        vllm_run(python, tmp_path, "float32", 1, tmp_path / "log"),
    ):
        pass
