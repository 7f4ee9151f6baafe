"""One run of the engine beside its peers: who takes turns with whom, and what came of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from bench import first_token, invariance, perplexity
from bench.figure import Figure
from bench.gguf_formats import gguf_file
from bench.llama_cpp import LlamaRun, system_info
from bench.native_programs import ProgramError, run_program
from bench.pairs import (
    CASES,
    LLAMA,
    OURS,
    PREFILLS,
    SHORT_CASES,
    VLLM,
    Rounds,
    Subject,
    WeightFormat,
    best_figures,
    format_figures,
    lossless,
    threads_text,
)
from bench.peer_programs import LlamaPrograms, PeerError, peer_python, pinned
from bench.vllm_cpu import vllm_run
from crossdock.errors import CrossdockError
from crossdock.models.packed import packed_directory

# What stands beside its limit, round by round: by case, dtype and kind of limit.
Limits: TypeAlias = dict[tuple[str, str, str], list[Figure]]

# Attention over a cache larger than the processor's, by dtype of the KV blocks.
_ATTENTION: Final = "decode_attention_"
_FP8_OVER_BF16: Final = 1.3
_INTEGER_PEAK: Final = "integer peak"


class Peer(Protocol):
    """A program that measures a case once, in tokens per second. Raises PeerError."""

    def measure(self, case: str) -> float: ...


@dataclass(frozen=True, slots=True)
class Turns:
    """How often the programs take turns on some threads."""

    threads: int
    num_rounds: int
    with_vllm: bool  # it takes a minute to start


@dataclass(slots=True)
class Session:
    """What was asked for, and what has been found. Raises ProgramError and FigureError where
    crossdock itself cannot be measured."""

    programs: dict[str, Path]
    llama: LlamaPrograms
    model: Path
    formats: Sequence[WeightFormat]
    kernels: str
    log: Path  # every line of bench_engine
    figures: list[Figure] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)
    # By program the dtypes whose perplexity is f32's; empty: not known yet.
    lossless: dict[str, list[str]] = field(default_factory=dict)

    def say_peers(self) -> None:
        """What the peers were compiled for."""
        try:
            print(f"llama.cpp: {system_info(self.llama, gguf_file('q4_1'))}", flush=True)
        except PeerError as error:
            self._miss("llama.cpp's compilation", error)

    def pair_formats(self, turns: Turns) -> None:
        """Prefill and decode in every format, in turns; each case of ours beside its limit."""
        rounds = Rounds(turns.threads)
        limits: Limits = {}
        for weight_format in self.formats:
            start = time.monotonic()
            with ExitStack() as stack:
                peers = self._peers(weight_format, turns, stack)
                for number in range(turns.num_rounds):
                    cases = CASES if number % 2 == 0 else SHORT_CASES
                    for dtype in weight_format.ours:
                        self._turn_of_ours(rounds, dtype, cases, limits)
                    for subject, peer in peers:
                        self._turn_of_peer(rounds, subject, peer, cases)
            self.figures += format_figures(rounds, weight_format)
            took = f"{time.monotonic() - start:.0f} s"
            print(f"{weight_format.name}, {threads_text(turns.threads)}: {took}", flush=True)
        self.figures += _limit_figures(limits, turns.threads)
        self.figures += self._best(rounds)

    def attend(self, threads: int) -> None:
        """Attention of one row over a long context, by dtype of the KV blocks."""
        lines = self._engine(threads, "--case", _ATTENTION, "--repeats", "5")
        figures = {figure.case: figure for _, figure in lines}
        text = threads_text(threads)
        self.figures += [_beside_limit(f, f"{case}, {text}") for case, f in figures.items()]
        fp8, bf16 = (figures.get(_ATTENTION + dtype) for dtype in ("fp8_e4m3", "bf16"))
        if fp8 is not None and bf16 is not None:
            self.figures.append(
                replace(
                    fp8,
                    case=f"{fp8.case}, {text}",
                    limit=bf16.value,
                    ratio=fp8.value / bf16.value,
                    against="bf16 KV",
                    wanted=_FP8_OVER_BF16,
                )
            )

    def compare_orders(self, threads: int) -> None:
        """What batch invariance costs."""
        self.figures += invariance.measure(
            lambda: self._engine(threads, "--case", invariance.CASES, "--repeats", "1"),
            threads,
            lambda error: self._miss("torch", error),
        )

    def start_engines(self, threads: int) -> None:
        """From the start of a process to its first token."""
        for weight_format in self.formats:
            for dtype in weight_format.ours:
                try:
                    start = first_token.Start(self.model, dtype, threads, self.kernels)
                    self.figures.append(first_token.figure(start))
                except CrossdockError as error:
                    self._miss(f"first token, {dtype}", error)
            for name in weight_format.llama:
                try:
                    figure = first_token.llama_figure(self.llama, gguf_file(name), name, threads)
                    self.figures.append(figure)
                except PeerError as error:
                    self._miss("llama.cpp's first token", error)

    def _miss(self, what: str, error: Exception) -> None:
        """Names what could not be measured, once."""
        if what not in self.not_measured:
            self.not_measured[what] = str(error)
            print(f"not measured: {what}: {error}", flush=True)

    def _engine(self, threads: int, *arguments: str) -> Iterator[tuple[str, Figure]]:
        """The lines of bench_engine with these arguments, kept on the peers' processors."""
        if "engine" not in self.programs:
            raise ProgramError("there is no program bench_engine: build with CROSSDOCK_BENCH=ON")
        options = ["--threads", str(threads), "--kernels", self.kernels, *arguments]
        program, *rest = pinned(threads, [str(self.programs["engine"]), *options])
        return run_program(Path(program), rest)

    def _peers(
        self, weight_format: WeightFormat, turns: Turns, stack: ExitStack
    ) -> list[tuple[Subject, Peer]]:
        """Those that are there; vLLM's process lives as long as the stack."""
        peers: list[tuple[Subject, Peer]] = [
            (Subject(LLAMA, name), LlamaRun(self.llama, gguf_file(name), turns.threads))
            for name in weight_format.llama
        ]
        for name in weight_format.vllm if turns.with_vllm else ():
            log = self.log.with_name(f"vllm_{name}.log")
            try:
                run = vllm_run(
                    peer_python("vllm", os.environ), self.model, name, turns.threads, log
                )
                peers.append((Subject(VLLM, name), stack.enter_context(run)))
            except PeerError as error:
                self._miss(VLLM, error)
        return peers

    def _turn_of_ours(
        self, rounds: Rounds, dtype: str, cases: Sequence[str], limits: Limits
    ) -> None:
        arguments = ["--model", str(self.model), "--weight-dtype", dtype]
        arguments += ["--weight-cache", str(packed_directory())]
        arguments += ["--case", ",".join(cases), "--repeats", "1"]
        for line, figure in self._engine(rounds.threads, *arguments):
            rounds.add(Subject(OURS, dtype), figure.case, figure.value)
            for beside in (figure, *_integer_peak(line, figure)):
                limits.setdefault((figure.case, dtype, beside.against), []).append(beside)
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**json.loads(line), "weight_dtype": dtype}) + "\n")

    def _turn_of_peer(
        self, rounds: Rounds, subject: Subject, peer: Peer, cases: Sequence[str]
    ) -> None:
        for case in cases:
            try:
                rounds.add(subject, case, peer.measure(case))
            except PeerError as error:
                self._miss(f"{subject} {case}", error)

    def _best(self, rounds: Rounds) -> Iterator[Figure]:
        """Decode at full quality: each side's fastest dtype that loses nothing."""
        if not self.lossless:
            self._find_lossless(rounds.threads)
        peers = {program: kept for program, kept in self.lossless.items() if program != OURS}
        yield from best_figures(rounds, self.lossless[OURS], peers)

    def _find_lossless(self, threads: int) -> None:
        ours = {"f32", *(name for f in self.formats for name in f.ours)}
        llama = {"f32", *(name for f in self.formats for name in f.llama)}
        values = {OURS: perplexity.of_crossdock(self.model, sorted(ours), threads)}
        try:
            values[LLAMA] = perplexity.of_llama(self.llama, sorted(llama), threads)
        except PeerError as error:
            self._miss("llama.cpp's perplexity", error)
        for program, measured in values.items():
            texts = (f"{dtype} {value:.4f}" for dtype, value in measured.items())
            print(f"perplexity of {program}: {', '.join(texts)}", flush=True)
            self.lossless[program] = lossless(measured)
        self.lossless[VLLM] = [name for f in self.formats for name in f.vllm]


def _limit_figures(limits: Limits, threads: int) -> Iterator[Figure]:
    """Each case of ours beside what the machine allowed in the same seconds."""
    for (case, dtype, _), measured in limits.items():
        ordered = sorted(measured, key=lambda figure: figure.ratio or 0.0)
        middle = ordered[len(ordered) // 2]
        yield _beside_limit(middle, f"{case}, {dtype}, {threads_text(threads)}")


def _integer_peak(line: str, figure: Figure) -> Iterator[Figure]:
    """A prefill whose products are of integers, beside their peak instead of the floats'."""
    fields = json.loads(line)
    if figure.limit is not None and figure.case in PREFILLS and "integer_gops" in fields:
        limit = figure.limit * fields["integer_gops"] / fields["fma_gflops"]
        yield replace(figure, limit=limit, ratio=figure.value / limit, against=_INTEGER_PEAK)


def _beside_limit(figure: Figure, case: str) -> Figure:
    """The figure under a longer name, with what was wanted of the shorter one."""
    if figure.against == _INTEGER_PEAK:
        return replace(figure, case=case, wanted=None)
    return replace(figure, case=case, against="limit", wanted=figure.wanted_ratio)
