"""Perplexity by the executor is transformers', and an FP8 KV cache leaves it as it is.

SmolLM2's on 16k tokens of held-out text takes minutes: `python -m bench kv_perplexity` measures it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from crossdock._native import Executor
from crossdock.models.cache import resolve
from crossdock.models.perplexity import WINDOW_BLOCKS, WINDOW_TOKENS, measure_perplexity
from crossdock.tokenization import Tokenizer
from tests.oracle.forcing import true_logits

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(300)]

INCREASE_MAX = 0.005


@pytest.fixture(scope="module")
def tiny_mla() -> Path:
    return resolve("tiny-mla")


@pytest.fixture(scope="module")
def heldout(tiny_mla: Path) -> str:
    return (tiny_mla / "heldout.txt").read_text(encoding="utf-8")


def perplexity(directory: Path, token_ids: list[int], kv_dtype: str) -> float:
    executor = Executor.load(
        str(directory), num_blocks=WINDOW_BLOCKS, kv_dtype=kv_dtype, num_threads=2
    )
    found = measure_perplexity(executor, token_ids)
    assert found.num_tokens == len(token_ids) - len(range(0, len(token_ids), WINDOW_TOKENS))
    return found.value


def test_perplexity_is_that_of_transformers(tiny_mla: Path, heldout: str) -> None:
    ids = Tokenizer.load(tiny_mla).encode(heldout)[:WINDOW_TOKENS]
    logits = true_logits(tiny_mla, ids).logits[:-1].astype(np.float64)
    chosen = np.take_along_axis(logits, np.array(ids[1:])[:, None], axis=1)[:, 0]
    likelihoods = chosen - np.log(np.exp(logits).sum(axis=1))
    wanted = np.exp(-likelihoods.mean())
    assert perplexity(tiny_mla, ids, "f32") == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "kv_dtype", "num_tokens"),
    [
        ("tiny-mla", "fp8_ds_mla", 16_384),
        pytest.param("default", "fp8_e4m3", 2_048, marks=pytest.mark.model),
    ],
)
def test_an_fp8_cache_leaves_the_perplexity(
    name: str, kv_dtype: str, num_tokens: int, heldout: str, request: pytest.FixtureRequest
) -> None:
    fixture = {"tiny-mla": "tiny_mla", "default": "default_model"}[name]
    directory: Path = request.getfixturevalue(fixture)
    ids = Tokenizer.load(directory).encode(heldout)[:num_tokens]
    assert len(ids) == num_tokens
    plain = perplexity(directory, ids, "bf16")
    assert abs(perplexity(directory, ids, kv_dtype) / plain - 1) < INCREASE_MAX
