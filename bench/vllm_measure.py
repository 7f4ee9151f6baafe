"""Measures vLLM inside an interpreter that has it; bench.vllm_cpu starts it.

    python vllm_measure.py MODEL DTYPE

Prints "ready", then answers each case that it reads from stdin with one line of tokens per second.
The engine lives in this process, so that nothing spins between the questions.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

# As bench_engine's cases have them: streams, prompt of each, steps.
_DECODES = {"one": (1, 128, 128), "16": (16, 32, 32)}
# Plain words of the vocabulary; special tokens come before them.
_TOKEN_IDS = (1_000, 20_000)


class Measured:
    """A loaded model. Prompts are random, so that nothing is cached."""

    def __init__(self, model: str, dtype: str) -> None:
        from vllm import LLM

        self._draw = random.Random(0)
        self._llm = LLM(
            model=model,
            dtype=dtype,
            max_model_len=2_304,
            max_num_seqs=16,
            max_num_batched_tokens=2_304,
            enable_prefix_caching=False,
        )
        self._run(1, 128, 4)

    def measure(self, case: str) -> float:
        """Tokens per second of the case, by the names of bench.pairs."""
        kind, number = case.split("_", maxsplit=1)[0], case.split("_")[1]
        if kind == "prefill":
            return int(number) / self._run(1, int(number), 1)
        streams, prompt, steps = _DECODES[number]
        # The prompt's own time, taken with the first token, is left out.
        first = self._run(streams, prompt, 1)
        return streams * steps / (self._run(streams, prompt, 1 + steps) - first)

    def _run(self, streams: int, prompt_tokens: int, new_tokens: int) -> float:
        from vllm import SamplingParams

        prompts: list[Any] = [
            {"prompt_token_ids": [self._draw.randrange(*_TOKEN_IDS) for _ in range(prompt_tokens)]}
            for _ in range(streams)
        ]
        sampling = SamplingParams(
            temperature=0, max_tokens=new_tokens, min_tokens=new_tokens, ignore_eos=True
        )
        start = time.perf_counter()
        self._llm.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - start


def main() -> None:
    measured = Measured(*sys.argv[1:3])
    print("ready", flush=True)
    for line in sys.stdin:
        print(f"{measured.measure(line.strip()):.3f}", flush=True)


if __name__ == "__main__":
    main()
