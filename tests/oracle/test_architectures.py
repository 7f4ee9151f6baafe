"""Every architecture gives transformers' logits, and its own to the bit however it is computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from crossdock._native import Executor
from tests.oracle.cases import CASES
from tests.oracle.forcing import (
    BLOCK_TABLE,
    NUM_BLOCKS,
    PROMPT_TOKENS,
    Rows,
    Truth,
    forced_rows,
    text_of,
    true_logits,
    write_dequantised,
    zero_tensors,
)
from tests.oracle.rounding_cache import rounding_cache, unit_roundoff
from tests.tiny_models.directory import write_tiny_model

pytestmark = pytest.mark.oracle

# Of the greatest logit. f32 against f64 in transformers itself is up to 1.1e-5 of it; ours against
# it in f32 is up to 2.8e-5.
ERROR_MAX = 1e-4
# Two right f32 computations see scores of gates that differ by under 1e-5; every case's seed is one
# whose choices are all clearer than this, so that every position can be compared.
GATE_MARGIN_MIN = 5e-5
# A key or value off by the format's unit roundoff u moves a layer's scores, whose standard
# deviation here is 4 or more, and so its weights by about 4u; with the values' own u and what the
# MLP makes of it, a layer adds under 6u of a logit's standard deviation in the typical row. (In a
# few rows it makes another expert be chosen, which bounds of rounding do not tell.)
KV_ROUNDOFFS_A_LAYER = 6
KV_CASES = {
    "llama, heads of 80, tied, in shards": ("bf16", "fp8_e4m3", "fp8_e5m2"),
    "mistral": ("bf16", "fp8_e4m3", "fp8_e5m2"),
    "qwen3": ("bf16", "fp8_e4m3", "fp8_e5m2"),
    "deepseek v2, best of groups": ("bf16", "fp8_ds_mla"),
    "deepseek v3": ("bf16", "fp8_ds_mla"),
    "deepseek v3, five heads, no q_lora": ("bf16", "fp8_ds_mla"),
}


@dataclass(frozen=True)
class Change:
    """One thing in a checkpoint that must not be without effect."""

    case: str
    key: str  # of config.json, "." leads into an object; or the end of the names of tensors
    value: object = None  # None: those tensors become zero


CHANGES = (
    Change("llama 3, bf16", "rope_theta", 9000.0),
    Change("llama 3, bf16", "rope_scaling.factor", 4.0),
    Change("llama 3, bf16", "rope_scaling.low_freq_factor", 1.5),
    Change("llama 3, bf16", "rope_scaling.high_freq_factor", 3.0),
    Change("llama 3, bf16", "rope_scaling.original_max_position_embeddings", 128),
    Change("mistral", "rms_norm_eps", 1e-2),
    Change("qwen2", "k_proj.bias"),
    Change("qwen2", "v_proj.bias"),
    Change("qwen3", "q_norm.weight"),
    Change("qwen3", "k_norm.weight"),
    Change("qwen3 moe", "num_experts_per_tok", 2),
    Change("qwen3 moe", "norm_topk_prob", value=False),
    Change("deepseek v2, best of groups", "topk_method", "greedy"),
    Change("deepseek v2, best of groups", "topk_group", 3),
    Change("deepseek v2, best of groups", "routed_scaling_factor", 1.0),
    Change("deepseek v3", "gate.e_score_correction_bias"),
    Change("deepseek v3", "q_a_layernorm.weight"),
    Change("deepseek v3", "kv_a_layernorm.weight"),
    Change("deepseek v3", "shared_experts.down_proj.weight"),
    Change("deepseek v3", "n_group", 2),
    Change("deepseek v3", "norm_topk_prob", value=False),
    Change("deepseek v3", "rope_scaling.mscale", 0.5),
    Change("deepseek v3", "rope_scaling.mscale_all_dim", 0.5),
    Change("deepseek v3", "rope_scaling.beta_fast", 2),
    Change("deepseek v3", "rope_scaling.beta_slow", 2),
    Change("deepseek v3, fp8", "kv_b_proj.weight_scale_inv"),
)


class Subject:
    """A tiny model on disk, and what transformers says of the text."""

    def __init__(self, name: str, directory: Path) -> None:
        self.spec = CASES[name]
        self.directory = write_tiny_model(directory / "model", self.spec)
        self.text = text_of(self.spec.vocab_size)
        self.plain = self.directory
        if self.spec.fp8:
            self.plain = write_dequantised(self.directory, directory / "plain")
        self.truth: Truth = true_logits(self.plain, self.text)

    def load(self, **changes: object) -> Executor:
        """An executor of the model in f32, unless changed."""
        arguments: dict[str, object] = {"weight_dtype": "f32", "num_blocks": NUM_BLOCKS}
        return Executor.load(str(self.directory), **(arguments | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def subject_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    return cache(lambda name: Subject(name, tmp_path_factory.mktemp("tiny")))


@pytest.fixture(params=list(CASES))
def subject(request: pytest.FixtureRequest, subject_of: Callable[[str], Subject]) -> Subject:
    return subject_of(request.param)


def row_errors(ours: Rows, wanted: Rows) -> Rows:
    """The greatest difference of each row, of the greatest logit of all."""
    assert ours.shape == wanted.shape
    assert np.isfinite(ours).all()
    errors: Rows = np.abs(ours - wanted).max(1) / np.abs(wanted).max()
    return errors


def worst_error(ours: Rows, wanted: Rows) -> float:
    """The greatest difference, of the greatest logit."""
    return float(row_errors(ours, wanted).max())


def test_logits_are_those_of_transformers(subject: Subject) -> None:
    assert subject.truth.gate_margins.min() > GATE_MARGIN_MIN
    wanted = subject.truth.logits
    decoded = forced_rows(subject.load(), subject.text, PROMPT_TOKENS)
    assert worst_error(decoded, wanted[PROMPT_TOKENS - 1 :]) < ERROR_MAX
    # A token a step from the first one on, so that every position has its row.
    assert worst_error(forced_rows(subject.load(), subject.text, 1), wanted) < ERROR_MAX


def test_the_bits_depend_on_nothing_else(subject: Subject) -> None:
    executor = subject.load()
    whole = forced_rows(executor, subject.text, PROMPT_TOKENS)
    for chunk in (7, 32):
        cut = forced_rows(executor, subject.text, chunk)
        assert np.array_equal(cut[-len(whole) :], whole), f"chunks of {chunk}"
    threads = forced_rows(subject.load(num_threads=2), subject.text, PROMPT_TOKENS)
    assert np.array_equal(threads, whole), "two threads"
    scalar = subject.load(kernels="scalar")
    assert np.array_equal(forced_rows(scalar, subject.text, PROMPT_TOKENS), whole), "scalar"
    assert scalar.numerics_id == executor.numerics_id


@pytest.mark.parametrize("name", [name for name, spec in CASES.items() if spec.mla is not None])
def test_expanded_prompts_give_the_logits_of_transformers(
    name: str, subject_of: Callable[[str], Subject]
) -> None:
    subject = subject_of(name)
    executor = subject.load(mla_prefill="expanded")
    assert "attn=mla-expanded" in executor.numerics_id
    whole = forced_rows(executor, subject.text, PROMPT_TOKENS)
    assert worst_error(whole, subject.truth.logits[PROMPT_TOKENS - 1 :]) < ERROR_MAX
    every = forced_rows(executor, subject.text, 1)
    assert worst_error(every, subject.truth.logits) < ERROR_MAX
    assert np.array_equal(every[-len(whole) :], whole), "chunks of 1"
    for chunk in (7, 32, 64):
        cut = forced_rows(executor, subject.text, chunk)
        assert np.array_equal(cut[-len(whole) :], whole), f"chunks of {chunk}"
    for changes in ({"num_threads": 2}, {"kernels": "scalar"}):
        other = subject.load(mla_prefill="expanded", **changes)
        assert np.array_equal(forced_rows(other, subject.text, PROMPT_TOKENS), whole), changes
    absorbed = forced_rows(subject.load(), subject.text, PROMPT_TOKENS)
    assert not np.array_equal(absorbed, whole)


def test_a_crowd_changes_no_bit(subject: Subject) -> None:
    executor = subject.load(num_blocks=3 * NUM_BLOCKS)
    alone = forced_rows(executor, subject.text, PROMPT_TOKENS)[0]
    executor.slab[:] = 0xFF
    others = [
        (subject.text[i:], 0, [k + NUM_BLOCKS * i for k in BLOCK_TABLE], True) for i in (1, 2)
    ]
    mine = (subject.text[:PROMPT_TOKENS], 0, BLOCK_TABLE, True)
    rows = executor.run([others[0], mine, others[1]])
    assert np.array_equal(rows[1], alone)


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [(case, dtype) for case, dtypes in KV_CASES.items() for dtype in dtypes]
)
def test_kv_is_read_back_as_its_format_rounds_it(
    name: str, kv_dtype: str, subject_of: Callable[[str], Subject]
) -> None:
    subject = subject_of(name)
    roundoff = unit_roundoff(kv_dtype)
    ours = forced_rows(subject.load(kv_dtype=kv_dtype), subject.text, 1)
    rounded = true_logits(subject.plain, subject.text, rounding_cache(kv_dtype)).logits
    # f32 rounding takes a few values to the other neighbour: many of bf16's, hardly any of FP8's.
    bound = roundoff if kv_dtype == "bf16" else roundoff / 100
    assert np.median(row_errors(ours, rounded)) < bound
    unrounded = subject.truth.logits
    deviations = np.sqrt(np.square(ours - unrounded).mean(1)) / unrounded.std()
    typical = float(np.median(deviations)) / roundoff
    assert 0.5 < typical < KV_ROUNDOFFS_A_LAYER * subject.spec.num_layers


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: f"{change.case}: {change.key}")
def test_nothing_of_a_checkpoint_is_without_effect(
    change: Change, subject_of: Callable[[str], Subject], tmp_path: Path
) -> None:
    """The alarm: what the comparison above proves is lost with any of these."""
    subject = subject_of(change.case)
    changed = Path(shutil.copytree(subject.directory, tmp_path / "changed"))
    if change.value is None:
        assert zero_tensors(changed / "model.safetensors", change.key) > 0
    else:
        config = json.loads((changed / "config.json").read_text())
        *path, last = change.key.split(".")
        inner = config[path[0]] if path else config
        assert inner[last] != change.value
        inner[last] = change.value
        (changed / "config.json").write_text(json.dumps(config))
    executor = Executor.load(str(changed), num_blocks=NUM_BLOCKS, weight_dtype="f32")
    rows = forced_rows(executor, subject.text, PROMPT_TOKENS)
    assert worst_error(rows, subject.truth.logits[PROMPT_TOKENS - 1 :]) > 10 * ERROR_MAX


def test_stop_ids_are_those_of_the_generation_config(subject: Subject, tmp_path: Path) -> None:
    assert subject.load().eos_token_ids == [2]
    changed = Path(shutil.copytree(subject.directory, tmp_path / "changed"))
    (changed / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 4]}))
    assert Executor.load(str(changed), num_blocks=1).eos_token_ids == [4, 9]


def test_fp8_weights_are_what_their_scales_say(subject_of: Callable[[str], Subject]) -> None:
    subject = subject_of("deepseek v3, fp8")
    executor = subject.load(weight_dtype="auto")
    assert "w=fp8" in executor.numerics_id
    rows = forced_rows(executor, subject.text, PROMPT_TOKENS)
    assert worst_error(rows, subject.truth.logits[PROMPT_TOKENS - 1 :]) < ERROR_MAX
