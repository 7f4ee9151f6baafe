"""How well a model predicts a text, by the engine's own executor: what lossy formats cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

WINDOW_TOKENS: Final = 512  # Computed by itself: a text of any length fits any context.
WINDOW_BLOCKS: Final = WINDOW_TOKENS // 32
# Of a run: enough for full products, while the logits of a large vocabulary stay in 25 MB.
RUN_TOKENS: Final = 128


class Runner(Protocol):
    """An executor with WINDOW_BLOCKS blocks or more; see crossdock._native.Executor."""

    def run(
        self, items: Sequence[tuple[Sequence[int], int, Sequence[int], bool]]
    ) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log likelihood of a token, over `num_tokens` of them."""

    value: float
    num_tokens: int


def measure_perplexity(executor: Runner, token_ids: Sequence[int]) -> Perplexity:
    """The text is cut into windows; all their tokens count but the first of each."""
    if len(token_ids) < 2:
        raise ValueError(f"a text of {len(token_ids)} tokens has none to predict")
    total, num_tokens = 0.0, 0
    for begin in range(0, len(token_ids) - 1, WINDOW_TOKENS):
        window = token_ids[begin : begin + WINDOW_TOKENS]
        for first in range(0, len(window) - 1, RUN_TOKENS):
            last = min(first + RUN_TOKENS, len(window) - 1)
            total += _surprise(executor, window, first, last)
            num_tokens += last - first
    return Perplexity(math.exp(total / num_tokens), num_tokens)


def _surprise(executor: Runner, window: Sequence[int], first: int, last: int) -> float:
    """The sum of -log p(next token) after each token of [first, last), in nats."""
    table = range(WINDOW_BLOCKS)
    # An item a token, since an item has the logits of its last one. Keys and values of a step are
    # stored before any of them is attended to, so this is one chunk of the window.
    logits = executor.run([([window[i]], i, table, True) for i in range(first, last)])
    peaks = logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(logits - peaks).sum(axis=1, dtype=np.float64)) + peaks[:, 0]
    chosen = np.take_along_axis(logits, np.array(window[first + 1 : last + 1])[:, None], axis=1)
    return float((log_sums - chosen[:, 0]).sum())
