"""The tiny models on which the engine is held against transformers: one of every part we build."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.tiny_models.directory import PRESETS, TinyMla, TinyModel
from tests.tiny_models.spec import LLAMA3_ROPE

_V2, _V3 = PRESETS["deepseek_v2"], PRESETS["deepseek_v3"]
assert _V2.moe is not None
assert _V3.moe is not None

# Where experts are chosen, the seed is one that brings no choice within rounding:
# test_architectures measures it.
CASES: Final[dict[str, TinyModel]] = {
    "llama, heads of 80, tied, in shards": TinyModel(
        num_heads=2, num_kv_heads=1, head_dim=80, tied=True, num_shards=2
    ),
    "llama 3, bf16": replace(
        PRESETS["llama"], head_dim=64, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE, dtype="bf16"
    ),
    "mistral": PRESETS["mistral"],
    "qwen2": PRESETS["qwen2"],
    "qwen3": PRESETS["qwen3"],
    "qwen3 moe": replace(PRESETS["qwen3_moe"], seed=2),
    "qwen3 moe, weights as they are": replace(
        PRESETS["qwen3_moe"], moe=replace(_V3.moe, normalised=False, method="greedy", scale=1.0)
    ),
    "deepseek v2, best of groups": replace(_V2, seed=3),
    "deepseek v2, greedy, q_lora": replace(
        _V2, mla=TinyMla(), rope_scaling=None, moe=replace(_V2.moe, num_shared=1, method="greedy")
    ),
    "deepseek v3": _V3,
    "deepseek v3, five heads, no q_lora": replace(
        _V3,
        hidden=80,
        num_heads=5,
        num_kv_heads=5,
        mla=TinyMla(q_rank=None, latent_rank=256, nope_dim=32, rope_dim=24, value_dim=16),
        moe=replace(_V3.moe, normalised=False, num_dense_layers=2),
    ),
    # Matrices that end inside a block of 128x128, both ways.
    "deepseek v3, fp8": replace(
        _V3,
        hidden=208,
        intermediate=152,
        num_heads=4,
        num_kv_heads=4,
        fp8=True,
        dtype="bf16",
        mla=TinyMla(q_rank=136),
    ),
}
