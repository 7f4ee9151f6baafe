"""Tiny random Llama models with a tokenizer, for tests and load: made in milliseconds.

Everything follows from the specification and its seed, so two machines make the same bytes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from crossdock.models.catalog import Dtype
from crossdock.models.weights_file import TensorPlan, write_safetensors

SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_NUM_BYTES: Final = 256
VOCAB_SIZE_MIN: Final = len(SPECIAL_TOKENS) + _NUM_BYTES

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Measured over seeds 0-9 of the default shape, 256 greedy tokens: see tests/oracle. Smaller
# attention gains leave the next token a function of the last one, and the output soon cycles.
_EMBEDDING_STD: Final = 0.5
_PROJECTION_GAIN: Final = 1.5
_SCORE_GAIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class TinyLlama:
    """The shape of a tiny model. Head counts are per layer, `context` is in tokens."""

    num_layers: int = 2
    hidden: int = 64
    intermediate: int = 192
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    vocab_size: int = 512
    context: int = 4096
    rope_theta: float = 10000.0
    tied: bool = False
    dtype: Dtype = "f32"
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


def write_tiny_llama(directory: Path, spec: TinyLlama | None = None) -> Path:
    """Writes the model as a Hugging Face directory, which is created; returns it."""
    spec = spec or TinyLlama()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(spec))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    )
    _write_weights(directory, spec)
    _write_tokenizer(directory, spec)
    return directory


def _config(spec: TinyLlama) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "max_position_embeddings": spec.context,
        "mlp_bias": False,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[spec.dtype],
        "use_cache": True,
        "vocab_size": spec.vocab_size,
    }


def _write_weights(directory: Path, spec: TinyLlama) -> None:
    plans = _tensor_plans(spec)
    metadata = {"format": "pt"}
    if spec.num_shards == 1:
        write_safetensors(directory / "model.safetensors", plans, spec.dtype, metadata)
        return
    # Cut between tensors, so that one layer may lie in two files, as in published models.
    shards = [
        [plans[i] for i in part] for part in np.array_split(np.arange(len(plans)), spec.num_shards)
    ]
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{spec.num_shards:05d}.safetensors"
        write_safetensors(directory / name, shard, spec.dtype, metadata)
        weight_map.update({plan.name: name for plan in shard})
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {}, "weight_map": weight_map},
    )


def _tensor_plans(spec: TinyLlama) -> list[TensorPlan]:
    seeds = itertools.count()

    def normal(name: str, rows: int, columns: int, std: float) -> TensorPlan:
        return TensorPlan(name, (rows, columns), _draw(spec, next(seeds), (rows, columns), 0, std))

    def norm(name: str) -> TensorPlan:
        # Not all ones: an engine that forgets a norm's weight must be caught.
        return TensorPlan(name, (spec.hidden,), _draw(spec, next(seeds), (spec.hidden,), 1, 0.2))

    def project(name: str, rows: int, columns: int, gain: float) -> TensorPlan:
        return normal(name, rows, columns, gain / math.sqrt(columns))

    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    plans = [normal("model.embed_tokens.weight", spec.vocab_size, spec.hidden, _EMBEDDING_STD)]
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        plans += [
            norm(prefix + "input_layernorm.weight"),
            project(prefix + "self_attn.q_proj.weight", query, spec.hidden, _SCORE_GAIN),
            project(prefix + "self_attn.k_proj.weight", key, spec.hidden, _SCORE_GAIN),
            project(prefix + "self_attn.v_proj.weight", key, spec.hidden, _PROJECTION_GAIN),
            project(prefix + "self_attn.o_proj.weight", spec.hidden, query, _PROJECTION_GAIN),
            norm(prefix + "post_attention_layernorm.weight"),
            project(
                prefix + "mlp.gate_proj.weight", spec.intermediate, spec.hidden, _PROJECTION_GAIN
            ),
            project(
                prefix + "mlp.up_proj.weight", spec.intermediate, spec.hidden, _PROJECTION_GAIN
            ),
            project(
                prefix + "mlp.down_proj.weight", spec.hidden, spec.intermediate, _PROJECTION_GAIN
            ),
        ]
    plans.append(norm("model.norm.weight"))
    if not spec.tied:
        plans.append(project("lm_head.weight", spec.vocab_size, spec.hidden, 2.0))
    return plans


def _draw(
    spec: TinyLlama, stream: int, shape: tuple[int, ...], mean: float, std: float
) -> Callable[[], npt.NDArray[np.float32]]:
    def values() -> npt.NDArray[np.float32]:
        generator = np.random.default_rng([spec.seed, stream])
        drawn = generator.standard_normal(shape, dtype=np.float32)
        return (drawn * np.float32(std) + np.float32(mean)).astype(np.float32)

    return values


def _write_tokenizer(directory: Path, spec: TinyLlama) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(itertools.islice(_merges(), spec.vocab_size - VOCAB_SIZE_MIN))
    tokens = [*SPECIAL_TOKENS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[1],
            "eos_token": SPECIAL_TOKENS[2],
            "unk_token": SPECIAL_TOKENS[0],
            "pad_token": SPECIAL_TOKENS[2],
            "clean_up_tokenization_spaces": False,
            "model_max_length": spec.context,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _merges() -> Iterator[tuple[str, str]]:
    """Endless distinct merges, frequent English letters first: two letters, then three, ..."""
    letters = "etaoinshrdlucmfwygpbvkxqjz"
    previous = ["Ġ", *letters]  # Ġ stands for the space in a byte-level vocabulary.
    while True:
        following = []
        for left in previous:
            for right in letters:
                yield left, right
                following.append(left + right)
        previous = following


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
