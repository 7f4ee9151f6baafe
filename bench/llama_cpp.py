"""llama.cpp's own benchmark programs, and what they print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peer_programs import LlamaPrograms, PeerError, pinned, run

# As bench_engine's cases have them: prompt and steps of one stream, and of each of sixteen.
_ONE: Final = (128, 128)
_SIXTEEN: Final = (32, 32)


@dataclass(frozen=True, slots=True)
class LlamaRun:
    """One GGUF file on some threads. Values are tokens per second."""

    programs: LlamaPrograms
    model: Path
    threads: int

    def measure(self, case: str) -> float:
        """One measurement of the case, by a fresh process. Raises PeerError."""
        return _CASES[case](self)

    def prefill(self, num_tokens: int) -> float:
        """A prompt from an empty context; the process has computed a short one before."""
        lines = self._bench("-p", f"{_ONE[0]},{num_tokens}", "-n", "0", "--no-warmup")
        return _samples(lines, n_prompt=num_tokens, n_gen=0)

    def decode_one(self) -> float:
        """Tokens of one sequence after its prompt."""
        prompt, steps = _ONE
        lines = self._bench("-p", "0", "-n", str(steps), "-d", str(prompt))
        return _samples(lines, n_prompt=0, n_gen=steps)

    def decode_sixteen(self) -> float:
        """Steps of sixteen sequences, each after a prompt of its own."""
        prompt, steps = _SIXTEEN
        command: list[str | Path] = [
            self.programs.path("llama-batched-bench"),
            *("-m", self.model, "-t", str(self.threads), "-c", "4096", "-b", "2048"),
            *("-npp", str(prompt), "-ntg", str(steps), "-npl", "16"),
            *("--output-format", "jsonl"),
        ]
        return _batched_speed(run(pinned(self.threads, command)).stdout)

    def _bench(self, *arguments: str) -> str:
        command: list[str | Path] = [
            self.programs.path("llama-bench"),
            *("-m", self.model, "-t", str(self.threads), "-r", "1", "-o", "jsonl"),
            *arguments,
        ]
        return run(pinned(self.threads, command)).stdout


_CASES: Final[Mapping[str, Callable[[LlamaRun], float]]] = {
    "prefill_512": lambda run: run.prefill(512),
    "prefill_2048": lambda run: run.prefill(2048),
    "decode_one_stream": LlamaRun.decode_one,
    "decode_16_streams": LlamaRun.decode_sixteen,
}


def system_info(programs: LlamaPrograms, model: Path) -> str:
    """What llama.cpp says that it was compiled for: "CPU : AVX2 = 1 | AVX512 = 1 | ...".

    Only llama-completion says so; one token of output costs nothing.
    """
    command: list[str | Path] = [
        *(programs.path("llama-completion"), "-m", model, "-p", "a", "-n", "1"),
        *("-no-cnv", "--no-warmup", "-lv", "4"),
    ]
    done = run([str(part) for part in command])
    match = re.search(r"system_info:.*?\| (CPU : .*)", done.stderr + done.stdout)
    return match[1].strip(" |") if match else "llama-completion printed no system_info"


def _samples(lines: str, *, n_prompt: int, n_gen: int) -> float:
    """The speed of the one test with these sizes among llama-bench's JSON lines."""
    for line in lines.splitlines():
        try:
            fields = json.loads(line)
            if (fields["n_prompt"], fields["n_gen"]) == (n_prompt, n_gen):
                return float(fields["avg_ts"])
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError(f"llama-bench printed {line[:200]!r} ({error})") from error
    raise PeerError(f"llama-bench printed no test of {n_prompt} + {n_gen} tokens")


def _batched_speed(output: str) -> float:
    """Decoded tokens per second of the whole batch, from llama-batched-bench's JSON line."""
    match = re.search(r'^\{.*"speed_tg": *([0-9.]+).*\}$', output, re.MULTILINE)
    if match is None:
        raise PeerError(f"llama-batched-bench printed no result: {output[-200:]!r}")
    return float(match[1])
