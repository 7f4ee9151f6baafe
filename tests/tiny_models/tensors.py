"""The tensors of a tiny random model, scaled so that nothing in it degenerates.

Scores, routing and logits have to spread: an engine that mixes two blocks up or forgets a part
must be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from crossdock.models.weights_file import ENCODINGS, TensorPlan
from tests.tiny_models.e4m3 import E4M3, from_e4m3, to_e4m3
from tests.tiny_models.spec import TinyMla, TinyModel, TinyMoe

# Measured over seeds 0-9 of the default shape, 256 greedy tokens: see tests/oracle. Smaller
# attention gains leave the next token a function of the last one, and the output soon cycles.
_EMBEDDING_STD = 0.5
_PROJECTION_GAIN = 1.5
_SCORE_GAIN = 2.0
_LOGIT_GAIN = 2.0
# Of sigmoid(router logits); their standard deviation is about 0.3.
_CORRECTION_STD = 0.1
_BIAS_STD = 0.5
_SCALE_GROUP = 128
_E4M3_MAX = 448.0

Values = Callable[[], npt.NDArray[np.float32]]


def tensor_plans(spec: TinyModel) -> list[TensorPlan]:
    """Every tensor of the model, in the order of its layers."""
    return _Plans(spec).build()


class _Plans:
    """Draws each tensor from a stream of its own, numbered in the order of the plans."""

    def __init__(self, spec: TinyModel) -> None:
        self._spec = spec
        self._plans: list[TensorPlan] = []
        self._num_streams = 0

    def build(self) -> list[TensorPlan]:
        spec = self._spec
        self._normal("model.embed_tokens.weight", (spec.vocab_size, spec.hidden), _EMBEDDING_STD)
        for layer in range(spec.num_layers):
            prefix = f"model.layers.{layer}."
            self._norm(prefix + "input_layernorm.weight", spec.hidden)
            if spec.mla is None:
                self._gqa(prefix + "self_attn.")
            else:
                self._mla(prefix + "self_attn.", spec.mla)
            self._norm(prefix + "post_attention_layernorm.weight", spec.hidden)
            if spec.moe is None or layer < spec.moe.num_dense_layers:
                self._mlp(prefix + "mlp.", spec.intermediate)
            else:
                self._moe(prefix + "mlp.", spec.moe)
        self._norm("model.norm.weight", spec.hidden)
        if not spec.tied:
            std = _LOGIT_GAIN / math.sqrt(spec.hidden)
            self._normal("lm_head.weight", (spec.vocab_size, spec.hidden), std)
        return self._plans

    def _gqa(self, prefix: str) -> None:
        spec = self._spec
        query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        self._project(prefix + "q_proj.weight", (query, spec.hidden), _SCORE_GAIN)
        self._project(prefix + "k_proj.weight", (key, spec.hidden), _SCORE_GAIN)
        self._project(prefix + "v_proj.weight", (key, spec.hidden), _PROJECTION_GAIN)
        self._project(prefix + "o_proj.weight", (spec.hidden, query), _PROJECTION_GAIN)
        if spec.architecture == "qwen2":
            for name, size in (("q", query), ("k", key), ("v", key)):
                self._normal(f"{prefix}{name}_proj.bias", (size,), _BIAS_STD)
        if spec.architecture.startswith("qwen3"):
            self._norm(prefix + "q_norm.weight", spec.head_dim, _SCORE_GAIN)
            self._norm(prefix + "k_norm.weight", spec.head_dim, _SCORE_GAIN)

    def _mla(self, prefix: str, mla: TinyMla) -> None:
        hidden, num_heads = self._spec.hidden, self._spec.num_heads
        query = num_heads * (mla.nope_dim + mla.rope_dim)
        if mla.q_rank is None:
            self._project(prefix + "q_proj.weight", (query, hidden), _SCORE_GAIN)
        else:
            self._project(prefix + "q_a_proj.weight", (mla.q_rank, hidden), 1.0)
            self._norm(prefix + "q_a_layernorm.weight", mla.q_rank)
            self._project(prefix + "q_b_proj.weight", (query, mla.q_rank), _SCORE_GAIN)
        latent = (mla.latent_rank + mla.rope_dim, hidden)
        self._project(prefix + "kv_a_proj_with_mqa.weight", latent, _SCORE_GAIN)
        self._norm(prefix + "kv_a_layernorm.weight", mla.latent_rank)
        heads = num_heads * (mla.nope_dim + mla.value_dim)
        self._project(prefix + "kv_b_proj.weight", (heads, mla.latent_rank), _SCORE_GAIN)
        value = num_heads * mla.value_dim
        self._project(prefix + "o_proj.weight", (hidden, value), _PROJECTION_GAIN)

    def _mlp(self, prefix: str, intermediate: int) -> None:
        hidden = self._spec.hidden
        self._project(prefix + "gate_proj.weight", (intermediate, hidden), _PROJECTION_GAIN)
        self._project(prefix + "up_proj.weight", (intermediate, hidden), _PROJECTION_GAIN)
        self._project(prefix + "down_proj.weight", (hidden, intermediate), _PROJECTION_GAIN)

    def _moe(self, prefix: str, moe: TinyMoe) -> None:
        shape = (moe.num_experts, self._spec.hidden)
        self._normal(prefix + "gate.weight", shape, _SCORE_GAIN / math.sqrt(self._spec.hidden))
        if moe.method == "noaux_tc":
            bias = self._draw((moe.num_experts,), 0.0, _CORRECTION_STD)
            name = prefix + "gate.e_score_correction_bias"
            self._plans.append(TensorPlan(name, (moe.num_experts,), bias, ENCODINGS["f32"]))
        for expert in range(moe.num_experts):
            self._mlp(f"{prefix}experts.{expert}.", moe.intermediate)
        if self._spec.is_deepseek:
            self._mlp(prefix + "shared_experts.", moe.intermediate * moe.num_shared)

    def _norm(self, name: str, size: int, mean: float = 1.0) -> None:
        # Not all ones: an engine that forgets a norm's weight must be caught.
        self._plans.append(TensorPlan(name, (size,), self._draw((size,), mean, 0.2)))

    def _normal(self, name: str, shape: tuple[int, ...], std: float) -> None:
        self._plans.append(TensorPlan(name, shape, self._draw(shape, 0.0, std)))

    def _project(self, name: str, shape: tuple[int, int], gain: float) -> None:
        """A matrix of a layer: [output][input], whose outputs have `gain` for inputs of one."""
        values = self._draw(shape, 0.0, gain / math.sqrt(shape[1]))
        if not self._spec.fp8:
            self._plans.append(TensorPlan(name, shape, values))
            return
        blocks = tuple(-(-size // _SCALE_GROUP) for size in shape)
        self._plans += [
            TensorPlan(name, shape, lambda: _quantise(values())[0], E4M3),
            TensorPlan(
                name + "_scale_inv", blocks, lambda: _quantise(values())[1], ENCODINGS["f32"]
            ),
        ]

    def _draw(self, shape: tuple[int, ...], mean: float, std: float) -> Values:
        key = [self._spec.seed, self._num_streams]
        self._num_streams += 1

        def values() -> npt.NDArray[np.float32]:
            drawn = np.random.default_rng(key).standard_normal(shape, dtype=np.float32)
            return (drawn * np.float32(std) + np.float32(mean)).astype(np.float32)

        return values


def _quantise(
    values: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The values over their block's scale, rounded to e4m3, and the scales [block row][column]."""
    rows, columns = (range(0, size, _SCALE_GROUP) for size in values.shape)
    rounded = np.empty_like(values)
    scales = np.empty((len(rows), len(columns)), np.float32)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            block = np.s_[row : row + _SCALE_GROUP, column : column + _SCALE_GROUP]
            scales[i, j] = np.abs(values[block]).max() / np.float32(_E4M3_MAX)
            rounded[block] = from_e4m3(to_e4m3(values[block] / scales[i, j]))
    return rounded, scales
