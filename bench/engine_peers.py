"""`python -m bench.engine_peers`: crossdock's engine beside llama.cpp and vLLM, in one run.

They take turns on the same weights, formats and threads. Prints what each peer was compiled for
and what could not be measured, then one table; writes JSON lines to bench/out/.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from bench import first_token, perplexity
from bench.figure import Figure, FigureError
from bench.figure_table import print_table
from bench.gguf_formats import gguf_file
from bench.llama_cpp import LlamaRun, system_info
from bench.native_programs import ProgramError, find_programs, run_program
from bench.pairs import (
    CASES,
    FORMATS,
    LLAMA,
    OURS,
    VLLM,
    Rounds,
    Subject,
    WeightFormat,
    best_figures,
    format_figures,
    lossless,
    threads_text,
)
from bench.peer_programs import LlamaPrograms, PeerError, vllm_python
from bench.vllm_cpu import vllm_run
from crossdock import models
from crossdock.models.errors import ModelError

_OUT: Final = Path(__file__).parent / "out"
# Attention over a cache larger than the processor's, by dtype of the KV blocks.
_ATTENTION: Final = "decode_attention_"
_FP8_OVER_BF16: Final = 1.3


class Peer(Protocol):
    """A program that measures a case once, in tokens per second. Raises PeerError."""

    def measure(self, case: str) -> float: ...


@dataclass(slots=True)
class Session:
    """One run of the whole: what it was asked for, and what it has found."""

    programs: dict[str, Path]
    llama: LlamaPrograms
    model: Path
    kernels: str
    num_rounds: int
    log: Path
    figures: list[Figure] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)

    def miss(self, what: str, error: Exception) -> None:
        """Names what could not be measured, once."""
        if what not in self.not_measured:
            self.not_measured[what] = str(error)
            print(f"not measured: {what}: {error}", flush=True)

    def engine(self, arguments: Sequence[str]) -> Iterator[tuple[str, Figure]]:
        """The lines of bench_engine with these arguments."""
        common = ["--kernels", self.kernels, "--repeats", "1"]
        if "engine" not in self.programs:
            raise ProgramError("there is no program bench_engine; build with CROSSDOCK_BENCH=ON")
        return run_program(self.programs["engine"], [*common, *arguments])

    def round_of_ours(self, rounds: Rounds, dtype: str, limits: dict[str, list[Figure]]) -> None:
        """All cases of one dtype, once; what is beside its limit goes to `limits`, by case."""
        arguments = ["--model", str(self.model), "--weight-dtype", dtype]
        arguments += ["--threads", str(rounds.threads), "--case", ",".join(CASES)]
        for line, figure in self.engine(arguments):
            rounds.add(Subject(OURS, dtype), figure.case, figure.value)
            limits.setdefault(f"{figure.case}, {dtype}", []).append(figure)
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**json.loads(line), "weight_dtype": dtype}) + "\n")

    def round_of_peer(self, rounds: Rounds, subject: Subject, peer: Peer) -> None:
        """All cases of one peer, once."""
        for case in CASES:
            try:
                rounds.add(subject, case, peer.measure(case))
            except PeerError as error:
                self.miss(f"{subject} {case}", error)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engine_peers", description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="folder with bench_*")
    parser.add_argument("--out", type=Path, default=_OUT, help="folder for the JSON lines")
    parser.add_argument("--threads", default="2,1", help="numbers of threads, with commas")
    parser.add_argument("--formats", default=",".join(f.name for f in FORMATS))
    parser.add_argument("--kernels", default="auto", help="crossdock's variant of them")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "engine_peers_rounds.jsonl"
    log.write_text("", encoding="utf-8")
    try:
        session = Session(
            programs=find_programs(arguments.programs),
            llama=LlamaPrograms.find(os.environ),
            model=models.resolve(models.DEFAULT_MODEL),
            kernels=arguments.kernels,
            num_rounds=arguments.rounds,
            log=log,
        )
        _run(session, arguments)
    except (ProgramError, FigureError, ModelError) as error:
        print(f"bench engine_peers: {error}", file=sys.stderr)
        return 1
    with (arguments.out / "engine_peers.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(figure.to_line() + "\n" for figure in session.figures)
    print_table(session.figures)
    for what, why in session.not_measured.items():
        print(f"not measured: {what}: {why}")
    return 0


def _run(session: Session, arguments: argparse.Namespace) -> None:
    formats = [f for f in FORMATS if f.name in arguments.formats.split(",")]
    print(f"load average {os.getloadavg()[0]:.2f}")
    try:
        info = system_info(session.llama, gguf_file("q4_1"))
        print(f"llama.cpp: {info}")
    except PeerError as error:
        session.miss("llama.cpp's compilation", error)
    for threads in map(int, arguments.threads.split(",")):
        _pair_formats(session, formats, threads)
        _attention(session, threads)
    _first_tokens(session, formats)


def _pair_formats(session: Session, formats: Sequence[WeightFormat], threads: int) -> None:
    rounds = Rounds(threads)
    limits: dict[str, list[Figure]] = {}
    for weight_format in formats:
        start = time.monotonic()
        with ExitStack() as stack:
            peers = _peers(session, weight_format, threads, stack)
            for _ in range(session.num_rounds):
                for dtype in weight_format.ours:
                    session.round_of_ours(rounds, dtype, limits)
                for subject, peer in peers:
                    session.round_of_peer(rounds, subject, peer)
        session.figures += format_figures(rounds, weight_format)
        took = time.monotonic() - start
        print(f"{weight_format.name}, {threads_text(threads)}: {took:.0f} s", file=sys.stderr)
    session.figures += _limit_figures(limits, threads)
    session.figures += _best(session, rounds, formats)


def _peers(
    session: Session, weight_format: WeightFormat, threads: int, stack: ExitStack
) -> list[tuple[Subject, Peer]]:
    """Those that are there; vLLM's processes live as long as the stack."""
    peers: list[tuple[Subject, Peer]] = [
        (Subject(LLAMA, name), LlamaRun(session.llama, gguf_file(name), threads))
        for name in weight_format.llama
    ]
    for name in weight_format.vllm:
        log = session.log.with_name(f"vllm_{name}_{threads}.log")
        try:
            python = vllm_python(os.environ)
            peer = stack.enter_context(vllm_run(python, session.model, name, threads, log))
            peers.append((Subject(VLLM, name), peer))
        except PeerError as error:
            session.miss("vLLM", error)
    return peers


def _limit_figures(limits: dict[str, list[Figure]], threads: int) -> Iterator[Figure]:
    """Each case of ours beside what the machine allowed in the same seconds."""
    for case, measured in limits.items():
        ordered = sorted(measured, key=lambda figure: figure.ratio or 0.0)
        middle = ordered[len(ordered) // 2]
        yield _beside_limit(middle, f"{case}, {threads_text(threads)}")


def _beside_limit(figure: Figure, case: str) -> Figure:
    """The figure under a longer name, with what was wanted of the shorter one."""
    return replace(figure, case=case, against="limit", wanted=figure.wanted_ratio)


def _best(session: Session, rounds: Rounds, formats: Sequence[WeightFormat]) -> Iterator[Figure]:
    """Decode at full quality: each side's fastest dtype that loses nothing."""
    llama_formats = [name for f in formats for name in f.llama]
    try:
        measured = perplexity.perplexities(session.llama, [*llama_formats, "f32"], rounds.threads)
    except PeerError as error:
        session.miss("llama.cpp's perplexity", error)
        return
    print("llama.cpp's perplexity: " + ", ".join(f"{k} {v:.4f}" for k, v in measured.items()))
    ours = [name for f in formats for name in f.ours if name != "fp8"]
    vllm = [name for f in formats for name in f.vllm]
    yield from best_figures(rounds, ours, {LLAMA: lossless(measured), VLLM: vllm})


def _attention(session: Session, threads: int) -> None:
    arguments = ["--threads", str(threads), "--case", _ATTENTION, "--repeats", "5"]
    figures = {figure.case: figure for _, figure in session.engine(arguments)}
    text = threads_text(threads)
    session.figures += [_beside_limit(f, f"{case}, {text}") for case, f in figures.items()]
    fp8, bf16 = (figures.get(_ATTENTION + dtype) for dtype in ("fp8_e4m3", "bf16"))
    if fp8 is not None and bf16 is not None:
        ratio = fp8.value / bf16.value
        session.figures.append(
            replace(
                _beside_limit(fp8, f"{fp8.case}, {text}"),
                limit=bf16.value,
                ratio=ratio,
                against="bf16 KV",
                wanted=_FP8_OVER_BF16,
            )
        )


def _first_tokens(session: Session, formats: Sequence[WeightFormat]) -> None:
    threads = os.cpu_count() or 1
    for weight_format in formats:
        for dtype in weight_format.ours:
            session.figures.append(
                first_token.figure(first_token.Start(session.model, dtype, threads))
            )
        for name in weight_format.llama:
            try:
                session.figures.append(
                    first_token.llama_figure(session.llama, gguf_file(name), name, threads)
                )
            except PeerError as error:
                session.miss("llama.cpp's first token", error)


if __name__ == "__main__":
    sys.exit(main())
