"""What a KV cache in FP8 costs: perplexity over 16k held-out tokens, beside that in bf16.

The text is the part of tiny-mla's that it was not trained on. tests/oracle holds fewer tokens of
the default model to the same bound: it needs minutes for all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.figure import Figure
from crossdock._native import Executor
from crossdock.models.cache import resolve
from crossdock.models.catalog import bundled_directory
from crossdock.models.perplexity import WINDOW_BLOCKS, measure_perplexity
from crossdock.tokenization import Tokenizer

_TOKENS: Final = 16_384
_INCREASE_MAX: Final = 0.005


async def measure(model: Path) -> AsyncIterator[Figure]:
    """The default model and tiny-mla, each in the FP8 dtype of its attention."""
    for directory, kv_dtype in ((model, "fp8_e4m3"), (resolve("tiny-mla"), "fp8_ds_mla")):
        plain = await asyncio.to_thread(_perplexity, directory, "bf16")
        rounded = await asyncio.to_thread(_perplexity, directory, kv_dtype)
        yield Figure(
            bench="kv_perplexity",
            case=f"{directory.name}, {_TOKENS} tokens, {kv_dtype}",
            value=rounded,
            unit="perplexity",
            limit=plain,
            ratio=plain / rounded,
            wanted=1 / (1 + _INCREASE_MAX),
            against="bf16",
        )


def _perplexity(directory: Path, kv_dtype: str) -> float:
    text = (bundled_directory("tiny-mla") / "heldout.txt").read_text(encoding="utf-8")
    token_ids = Tokenizer.load(directory).encode(text)[:_TOKENS]
    executor = Executor.load(
        str(directory),
        num_blocks=WINDOW_BLOCKS,
        kv_dtype=kv_dtype,
        num_threads=len(os.sched_getaffinity(0)),
    )
    return measure_perplexity(executor, token_ids).value
