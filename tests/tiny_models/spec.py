"""What a tiny random model consists of, and one of each architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from crossdock.models.catalog import Dtype
from tests.tiny_models.tokenizer import VOCAB_SIZE_MIN

Architecture = Literal[
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3"
]
CLASS_NAMES: Final[dict[Architecture, str]] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}


@dataclass(frozen=True, slots=True)
class TinyMla:
    """Latent attention; the ranks and dims are DeepSeek's, in elements."""

    q_rank: int | None = 40  # None: queries straight from the hidden state.
    latent_rank: int = 128
    nope_dim: int = 24
    rope_dim: int = 16
    value_dim: int = 32


@dataclass(frozen=True, slots=True)
class TinyMoe:
    """Routed experts in every layer but the first `num_dense_layers`."""

    num_experts: int = 8
    num_chosen: int = 3
    intermediate: int = 48
    num_shared: int = 2  # DeepSeek alone has them.
    num_dense_layers: int = 1
    num_groups: int = 1
    num_chosen_groups: int = 1
    method: Literal["greedy", "group_limited_greedy", "noaux_tc"] = "greedy"
    normalised: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The shape of a tiny model. Head counts are per layer, `context` is in tokens."""

    architecture: Architecture = "llama"
    num_layers: int = 2
    hidden: int = 64
    intermediate: int = 192
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 512
    context: int = 4096
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    mla: TinyMla | None = None
    moe: TinyMoe | None = None
    tied: bool = False
    dtype: Dtype = "f32"
    fp8: bool = False  # The layers' matrices in e4m3 with 128x128 scales; the rest in `dtype`.
    num_shards: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.vocab_size < VOCAB_SIZE_MIN:
            raise ValueError(f"vocab_size is {self.vocab_size}, must be at least {VOCAB_SIZE_MIN}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads is {self.num_heads}, must be a multiple of num_kv_heads, "
                f"{self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, must be even")
        if not 1 <= self.num_shards <= self.num_layers:
            raise ValueError(f"num_shards is {self.num_shards}, must be 1 to {self.num_layers}")
        if self.architecture == "qwen2" and self.hidden != self.num_heads * self.head_dim:
            raise ValueError(f"head_dim is {self.head_dim}, must be hidden / num_heads")
        if (self.mla is not None) != self.is_deepseek:
            raise ValueError(f"mla is DeepSeek's attention, {self.architecture} has another")
        if (self.moe is not None) != (self.is_deepseek or self.architecture == "qwen3_moe"):
            raise ValueError(f"moe and {self.architecture} do not go together")

    @property
    def is_deepseek(self) -> bool:
        """Whether the attention is MLA."""
        return self.architecture in ("deepseek_v2", "deepseek_v3")


YARN_ROPE: Final = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
LLAMA3_ROPE: Final = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# One model of each architecture, with whatever sets it apart from the others. Scaled contexts are
# so short that a test's positions reach into the scaled part.
PRESETS: Final[dict[Architecture, TinyModel]] = {
    "llama": TinyModel(),
    "mistral": TinyModel("mistral", num_heads=3, num_kv_heads=1, head_dim=64, hidden=96),
    "qwen2": TinyModel("qwen2", num_heads=6, num_kv_heads=2, head_dim=16, hidden=96),
    "qwen3": TinyModel("qwen3", num_heads=3, num_kv_heads=3, head_dim=128, tied=True),
    "qwen3_moe": TinyModel(
        "qwen3_moe", num_layers=3, num_heads=5, num_kv_heads=1, head_dim=32, moe=TinyMoe()
    ),
    "deepseek_v2": TinyModel(
        "deepseek_v2",
        num_layers=3,
        hidden=80,
        num_heads=5,
        num_kv_heads=5,
        context=512,
        rope_scaling=YARN_ROPE,
        mla=TinyMla(q_rank=None),
        moe=TinyMoe(
            num_groups=4,
            num_chosen_groups=2,
            method="group_limited_greedy",
            normalised=False,
            scale=1.5,
        ),
    ),
    "deepseek_v3": TinyModel(
        "deepseek_v3",
        num_layers=3,
        hidden=96,
        num_heads=3,
        num_kv_heads=3,
        context=512,
        rope_scaling=YARN_ROPE,
        mla=TinyMla(),
        moe=TinyMoe(
            num_experts=16,
            num_groups=4,
            num_chosen_groups=2,
            method="noaux_tc",
            scale=2.5,
        ),
    ),
}
