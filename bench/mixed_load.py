"""What a long prompt costs those who are being answered: chunked prefill against none.

Two engines, alike but for `chunked_prefill`, take turns. Each round 16 sequences decode and a
prompt of 2,048 random tokens arrives. Counted is every time between two tokens of a decode that
overlaps the prompt's wait, from its arrival to its first token: a token that an unchunked prompt
holds up comes just after that. Values are medians over the rounds, ratios paired within a round.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figure import Figure
from crossdock import _native as native
from crossdock.engine.client import Engine
from crossdock.engine.process import EngineConfig, ProcessLauncher, engine_path
from crossdock.engine.sequence import EngineSequence

NUM_DECODES = 16
DECODE_PROMPT_TOKENS = 64
PROMPT_TOKENS = 2_048
WANTED_RATIO = 5.0
# Odd, so that the median is a round; the first one is for the caches, and not counted.
ROUNDS = 5
# Tokens that each decode has when the prompt arrives, and after its first token at least.
_WARM_TOKENS = 8
_ROUND_TIMEOUT_S = 300.0
_START_TIMEOUT_S = 120.0
# Plain words of the vocabulary; special tokens come before them.
_TOKEN_IDS = (1_000, 20_000)


@dataclass(frozen=True, slots=True)
class Round:
    """Times in ms."""

    p99_token: float
    first_token: float


async def measure(model: Path) -> AsyncIterator[Figure]:
    """Starts the two engines, lets them take turns, ends them."""
    draw = random.Random(1)
    rounds: dict[bool, list[Round]] = {True: [], False: []}
    async with _engine(model, chunked=True) as chunked, _engine(model, chunked=False) as unchunked:
        for number in range(ROUNDS + 1):
            for engine in (chunked, unchunked):
                async with asyncio.timeout(_ROUND_TIMEOUT_S):
                    result = await _run(engine, draw)
                if number > 0:
                    rounds[engine is chunked].append(result)
    for figure in figures(rounds[True], rounds[False]):
        yield figure


def figures(chunked: Sequence[Round], unchunked: Sequence[Round]) -> list[Figure]:
    """The rounds of the two engines, in the order in which they took turns."""
    ratio = statistics.median(
        without.p99_token / with_.p99_token
        for with_, without in zip(chunked, unchunked, strict=True)
    )
    p99 = f"P99 of a token, {NUM_DECODES} decodes beside a prompt of {PROMPT_TOKENS:,}"
    first = f"first token of {PROMPT_TOKENS:,} beside {NUM_DECODES} decodes"
    without_ms = statistics.median(r.p99_token for r in unchunked)
    return [
        Figure(
            "mixed_load",
            p99,
            statistics.median(r.p99_token for r in chunked),
            "ms",
            limit=without_ms,
            ratio=ratio,
            against="unchunked",
            wanted=WANTED_RATIO,
        ),
        Figure("mixed_load", f"{p99}, unchunked", without_ms, "ms"),
        Figure("mixed_load", first, statistics.median(r.first_token for r in chunked), "ms"),
        Figure(
            "mixed_load",
            f"{first}, unchunked",
            statistics.median(r.first_token for r in unchunked),
            "ms",
        ),
    ]


def overlapping_gaps(times: Sequence[float], begin: float, end: float) -> list[float]:
    """The times between neighbours that share some time with [begin, end]."""
    pairs = itertools.pairwise(times)
    return [after - before for before, after in pairs if before < end and after > begin]


def percentile_99(values: Sequence[float]) -> float:
    """The smallest value that 99 % do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


@contextlib.asynccontextmanager
async def _engine(model: Path, *, chunked: bool) -> AsyncIterator[Engine]:
    config = EngineConfig(
        model_directory=str(model),
        instance_id=f"mixed-load-{'chunked' if chunked else 'unchunked'}",
        num_threads=len(os.sched_getaffinity(0)),
        chunked_prefill=chunked,
    )
    engine = Engine(*await ProcessLauncher(config, engine_path()).launch())
    try:
        await engine.wait_ready(_START_TIMEOUT_S)
        yield engine
    finally:
        await engine.shut_down()


async def _run(engine: Engine, draw: random.Random) -> Round:
    """One round: everything is fresh, so nothing is found in a cache."""
    decodes = [_open(engine, draw, DECODE_PROMPT_TOKENS, 4_096) for _ in range(NUM_DECODES)]
    times: list[list[float]] = [[] for _ in decodes]
    came = asyncio.Event()
    readers = [
        asyncio.create_task(_read(sequence, into, came))
        for sequence, into in zip(decodes, times, strict=True)
    ]
    try:
        await _until_longer(times, _WARM_TOKENS, came)
        begin = time.perf_counter()
        prompt = _open(engine, draw, PROMPT_TOKENS, 1)
        first: list[float] = []
        await _read(prompt, first, came)
        engine.close(prompt)
        # The token that the prompt's last step held up is counted, so each must have it.
        await _until_longer(times, max(map(len, times)) + 1, came)
    finally:
        for reader in readers:
            reader.cancel()
        outcomes = await asyncio.gather(*readers, return_exceptions=True)
        for sequence in decodes:
            engine.close(sequence)
    for outcome in outcomes:
        if not isinstance(outcome, asyncio.CancelledError):
            raise RuntimeError(f"a decode ended within the round: {outcome!r}")
    gaps = [gap for of_one in times for gap in overlapping_gaps(of_one, begin, first[0])]
    return Round(percentile_99(gaps) * 1e3, (first[0] - begin) * 1e3)


def _open(engine: Engine, draw: random.Random, num_tokens: int, max_tokens: int) -> EngineSequence:
    prompt = [draw.randrange(*_TOKEN_IDS) for _ in range(num_tokens)]
    sampling = native.Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return engine.open(
        lambda sequence_id: native.Generate(
            task=native.Task(sequence_id=sequence_id, prompt=prompt, sampling=sampling)
        ),
        local=True,
    )


async def _read(sequence: EngineSequence, times: list[float], came: asyncio.Event) -> None:
    """Notes when each token came, until the last."""
    while not sequence.over:
        events = await sequence.take()
        now = time.perf_counter()
        times.extend(now for event in events if isinstance(event, native.SequenceToken))
        came.set()


async def _until_longer(
    times: Sequence[Sequence[float]], num_tokens: int, came: asyncio.Event
) -> None:
    while min(map(len, times)) <= num_tokens:
        came.clear()
        await came.wait()
