"""Figures out of rounds in which crossdock and its peers took turns. Pure.

A ratio is the median over the rounds of crossdock's figure over the peer's of the same round, so
that what else the machine did met both; the columns show the medians themselves.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.figure import Figure

PREFILLS: Final = ("prefill_512", "prefill_2048")
DECODE_ONE: Final = "decode_one_stream"
DECODE_SIXTEEN: Final = "decode_16_streams"
CASES: Final = (*PREFILLS, DECODE_ONE, DECODE_SIXTEEN)
# Every other round leaves the longest out.
SHORT_CASES: Final = (PREFILLS[0], DECODE_ONE, DECODE_SIXTEEN)
OURS: Final = "crossdock"
LLAMA: Final = "llama.cpp"
VLLM: Final = "vLLM"
# A format counts as lossless when its perplexity is within this share of f32's.
PERPLEXITY_SHARE: Final = 0.001


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Formats that are compared with each other: by what crossdock and its peers call them."""

    name: str
    ours: tuple[str, ...]
    llama: tuple[str, ...]
    vllm: tuple[str, ...] = ()
    # What prefill should reach, as a multiple of llama.cpp's.
    prefill_goal: float | None = None


FORMATS: Final = (
    WeightFormat("f32", ("f32",), ("f32",), ("float32",), 1.5),
    WeightFormat("bf16", ("bf16",), ("bf16",), ("bfloat16",)),
    WeightFormat("8 bit", ("int8", "fp8"), ("q8_0",), (), 2.5),
    WeightFormat("4 bit", ("int4",), ("q4_1",), (), 2.5),
)
# Of crossdock's best format at full quality over the peer's.
_BEST_GOALS: Final = {DECODE_ONE: 1.4, DECODE_SIXTEEN: 1.8}


@dataclass(frozen=True, slots=True)
class Subject:
    """A program with weights in one dtype, as that program calls it."""

    program: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.program} {self.dtype}"


@dataclass(slots=True)
class Rounds:
    """What was measured on one number of threads: per subject and case one value a round."""

    threads: int
    values: dict[tuple[Subject, str], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, subject: Subject, case: str, tokens_per_s: float) -> None:
        """Appends the value of the next round."""
        self.values[subject, case].append(tokens_per_s)

    def median(self, subject: Subject, case: str) -> float | None:
        """None where the subject was not measured."""
        values = self.values.get((subject, case))
        return statistics.median(values) if values else None

    def ratio(self, ours: Subject, peer: Subject, case: str) -> float:
        """The median over the rounds that both have."""
        pairs = zip(self.values[ours, case], self.values[peer, case], strict=False)
        return statistics.median(a / b for a, b in pairs)

    def fastest(self, program: str, case: str, dtypes: Iterable[str]) -> Subject | None:
        """The program's best of these dtypes; None where none was measured."""
        measured = [
            (value, subject)
            for subject in (Subject(program, dtype) for dtype in dtypes)
            if (value := self.median(subject, case)) is not None
        ]
        return max(measured, key=lambda pair: pair[0])[1] if measured else None


def lossless(perplexities: Mapping[str, float], reference: str = "f32") -> list[str]:
    """The dtypes whose perplexity is within PERPLEXITY_SHARE of the reference's."""
    allowed = perplexities[reference] * (1 + PERPLEXITY_SHARE)
    return [dtype for dtype, value in perplexities.items() if value <= allowed]


def format_figures(rounds: Rounds, weight_format: WeightFormat) -> Iterator[Figure]:
    """Crossdock's best dtype of the format against each peer's best, case by case."""
    peers = ((LLAMA, weight_format.llama), (VLLM, weight_format.vllm))
    for case in CASES:
        ours = rounds.fastest(OURS, case, weight_format.ours)
        for program, dtypes in peers:
            peer = rounds.fastest(program, case, dtypes)
            is_goal = program == LLAMA and case in PREFILLS
            wanted = weight_format.prefill_goal if is_goal else None
            if ours is not None and peer is not None:
                yield _pair(rounds, case, (ours, peer), wanted, weight_format.name)


def best_figures(
    rounds: Rounds, ours_dtypes: Sequence[str], peer_dtypes: Mapping[str, Sequence[str]]
) -> Iterator[Figure]:
    """Decode: crossdock's fastest of these dtypes against each peer's fastest of its own."""
    for case, wanted in _BEST_GOALS.items():
        ours = rounds.fastest(OURS, case, ours_dtypes)
        for program, dtypes in peer_dtypes.items():
            peer = rounds.fastest(program, case, dtypes)
            if ours is not None and peer is not None:
                goal = wanted if program == LLAMA else None
                yield _pair(rounds, case, (ours, peer), goal, "best")


def _pair(
    rounds: Rounds, case: str, pair: tuple[Subject, Subject], wanted: float | None, what: str
) -> Figure:
    ours, peer = pair
    value, limit = rounds.median(ours, case), rounds.median(peer, case)
    assert value is not None
    assert limit is not None
    return Figure(
        bench="peers",
        case=f"{case}, {what} ({ours.dtype}), {threads_text(rounds.threads)}",
        value=value,
        unit="tok/s",
        limit=limit,
        ratio=rounds.ratio(ours, peer, case),
        against=str(peer),
        wanted=wanted,
    )


def threads_text(threads: int) -> str:
    """As in "1 thread" and "2 threads"."""
    return f"{threads} thread" + ("s" if threads > 1 else "")
