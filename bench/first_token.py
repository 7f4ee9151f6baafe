"""From the start of an engine process to its first token, the weights in the page cache.

The engine is started as a front starts it; the prompt is sent when it is ready. llama.cpp's
counterpart is one call of llama-completion for one token, with its tokenizer and its output.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figure import Figure
from bench.pairs import threads_text
from bench.peer_programs import LlamaPrograms, pinned, run
from crossdock.models.packed import packed_directory

REPETITIONS: Final = 3
_PROMPT: Final = "The capital of France is the city of"
# The same length as _PROMPT; which tokens they are does not matter.
_PROMPT_IDS: Final = tuple(range(1_000, 1_008))
_START_S: Final = 120.0
# What a user should wait at most.
_GOAL_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Start:
    """How an engine is started."""

    model: Path
    weight_dtype: str
    threads: int
    kernels: str = "auto"

    def measure(self) -> float:
        """Seconds from the start of the process to its first token."""
        return asyncio.run(self._first_token())

    async def _first_token(self) -> float:
        from crossdock import _native as native
        from crossdock.engine.client import Engine
        from crossdock.engine.process import EngineConfig, ProcessLauncher, engine_path

        config = EngineConfig(
            model_directory=str(self.model),
            instance_id="bench",
            weight_dtype=self.weight_dtype,
            weight_cache_directory=str(packed_directory()),
            kv_dtype="bf16",
            num_threads=self.threads,
            kernels=self.kernels,
        )
        sampling = native.Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)
        start = time.perf_counter()
        link, process = await ProcessLauncher(config, engine_path()).launch()
        engine = Engine(link, process)
        try:
            await engine.wait_ready(_START_S)
            sequence = engine.open(
                lambda number: native.Generate(
                    task=native.Task(
                        sequence_id=number, prompt=list(_PROMPT_IDS), sampling=sampling
                    )
                ),
                local=True,
            )
            await sequence.take()
            return time.perf_counter() - start
        finally:
            await engine.shut_down()


def llama_first_token(programs: LlamaPrograms, model: Path, threads: int) -> float:
    """Seconds that llama-completion takes for one token. Raises PeerError."""
    command: list[str | Path] = [
        *(programs.path("llama-completion"), "-m", model, "-t", str(threads), "-p", _PROMPT),
        *("-n", "1", "-no-cnv", "--no-warmup"),
    ]
    start = time.perf_counter()
    run(pinned(threads, command))
    return time.perf_counter() - start


def figure(start: Start) -> Figure:
    """The median over REPETITIONS, after one start that fills the caches of the disk."""
    start.measure()
    value = statistics.median(start.measure() for _ in range(REPETITIONS))
    return Figure(
        bench="peers",
        case=f"start to first token, {start.weight_dtype}, {threads_text(start.threads)}",
        value=value,
        unit="s",
        limit=_GOAL_S,
        ratio=_GOAL_S / value,
        against="goal",
        wanted=1.0,
    )


def llama_figure(programs: LlamaPrograms, model: Path, dtype: str, threads: int) -> Figure:
    """For information: the same of llama.cpp, the process's end included."""
    llama_first_token(programs, model, threads)
    value = statistics.median(
        llama_first_token(programs, model, threads) for _ in range(REPETITIONS)
    )
    return Figure(
        bench="peers",
        case=f"start to first token, {threads_text(threads)}",
        value=value,
        unit="s",
        against=f"llama.cpp {dtype}",
    )
