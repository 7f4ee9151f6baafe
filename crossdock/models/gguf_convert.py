"""From a GGUF file of the Llama architecture to a Hugging Face directory.

The weights are dequantised. GGUF stores the rows of the query and key projections in the order
of llama.cpp's rotary embedding (pairs side by side); Hugging Face wants the halves of a head one
after the other, so the permutation is undone. The tokenizer is rebuilt from the vocabulary and
the merges in the file.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from crossdock.models.catalog import Dtype
from crossdock.models.errors import ModelFetchError
from crossdock.models.weights_file import TensorPlan, write_safetensors

Float32Array = npt.NDArray[np.float32]

# Kinds of token in GGUF's tokenizer.ggml.token_type.
_TOKEN_CONTROL: Final = 3
# tokenizer.ggml.pre: how text is cut before BPE. The only kind known here.
_PRE_TOKENIZER: Final = "smollm"

_LAYER_TENSORS: Final = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_OUTER_TENSORS: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def require_gguf_package() -> None:
    """Raises ModelFetchError when the optional package that reads GGUF is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise ModelFetchError(
            "converting a GGUF model needs the gguf package: pip install 'crossdock[convert]'"
        )


def convert_gguf(
    gguf_path: Path,
    directory: Path,
    dtype: Dtype,
    source: str,
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Fills the existing `directory` from the GGUF file. `source` is kept as provenance."""
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf_path))
    fields = _Fields(reader)
    if fields.text("general.architecture") != "llama":
        raise ModelFetchError(
            f"{gguf_path.name} is of architecture {fields.text('general.architecture')!r}; "
            "only llama can be converted"
        )
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = _config(fields, dtype, tied)
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", _generation_config(config))
    _write_tokenizer(directory, fields)
    write_safetensors(
        directory / "model.safetensors",
        _tensor_plans(reader, config),
        dtype,
        {"format": "pt", "source": source},
        on_bytes,
    )


class _Fields:
    """The key-value part of a GGUF file, with the type of each value checked."""

    def __init__(self, reader: Any) -> None:
        self._fields = reader.fields

    def _get(self, key: str) -> Any:
        if key not in self._fields:
            raise ModelFetchError(f"the GGUF file has no {key}")
        return self._fields[key].contents()

    def integer(self, key: str) -> int:
        return int(self._get(key))

    def number(self, key: str) -> float:
        # Stored as f32; the shortest decimal that means the same f32 is what the authors wrote.
        return float(str(np.float32(self._get(key))))

    def text(self, key: str) -> str:
        return str(self._get(key))

    def texts(self, key: str) -> list[str]:
        return [str(value) for value in self._get(key)]

    def integers(self, key: str) -> list[int]:
        return [int(value) for value in self._get(key)]


def _config(fields: _Fields, dtype: Dtype, tied: bool) -> dict[str, Any]:
    num_heads = fields.integer("llama.attention.head_count")
    hidden = fields.integer("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields.integer("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.integer("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.integer("tokenizer.ggml.padding_token_id"),
        "head_dim": hidden // num_heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": fields.integer("llama.feed_forward_length"),
        "max_position_embeddings": fields.integer("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": fields.integer("llama.block_count"),
        "num_key_value_heads": fields.integer("llama.attention.head_count_kv"),
        "rms_norm_eps": fields.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_scaling": None,
        "rope_theta": fields.number("llama.rope.freq_base"),
        "tie_word_embeddings": tied,
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype],
        "use_cache": True,
        "vocab_size": len(fields.texts("tokenizer.ggml.tokens")),
    }


def _generation_config(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _tensor_plans(reader: Any, config: dict[str, Any]) -> list[TensorPlan]:
    plans = []
    for tensor in reader.tensors:
        name = _hugging_face_name(tensor.name)
        # GGUF counts dimensions from the fastest one.
        shape = tuple(int(extent) for extent in reversed(tensor.shape))
        num_heads = {
            "q_proj": config["num_attention_heads"],
            "k_proj": config["num_key_value_heads"],
        }.get(name.split(".")[-2])
        plans.append(TensorPlan(name, shape, _values_of(tensor, shape, num_heads)))
    return sorted(plans, key=lambda plan: _layer_order(plan.name))


def _values_of(
    tensor: Any,
    shape: tuple[int, ...],
    num_heads: int | None,
) -> Callable[[], Float32Array]:
    def values() -> Float32Array:
        from gguf.quants import dequantize

        array: Float32Array = dequantize(tensor.data, tensor.tensor_type)
        array = array.reshape(shape).astype(np.float32, copy=False)
        return array if num_heads is None else unpermute_rope(array, num_heads)

    return values


def unpermute_rope(weight: Float32Array, num_heads: int) -> Float32Array:
    """Rows of each head from (pair, side) order, as in GGUF, to (side, pair) order."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _hugging_face_name(gguf_name: str) -> str:
    if gguf_name in _OUTER_TENSORS:
        return _OUTER_TENSORS[gguf_name]
    prefix, _, rest = gguf_name.partition(".")
    layer, _, part = rest.partition(".")
    if prefix != "blk" or part not in _LAYER_TENSORS:
        raise ModelFetchError(f"the GGUF file has a tensor that Llama has not: {gguf_name}")
    return f"model.layers.{layer}.{_LAYER_TENSORS[part]}"


def _layer_order(name: str) -> tuple[int, int]:
    """In the order of use: the embedding, layer by layer, the final norm, the head."""
    outer = list(_OUTER_TENSORS.values())
    if name in outer:
        return (-1, 0) if name == outer[0] else (1 << 30, outer.index(name))
    layer, part = name.removeprefix("model.layers.").split(".", 1)
    return int(layer), list(_LAYER_TENSORS.values()).index(part)


def _write_tokenizer(directory: Path, fields: _Fields) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if fields.text("tokenizer.ggml.pre") != _PRE_TOKENIZER:
        raise ModelFetchError(
            f"the GGUF file cuts text in the way {fields.text('tokenizer.ggml.pre')!r}; "
            f"only {_PRE_TOKENIZER!r} is known"
        )
    tokens = fields.texts("tokenizer.ggml.tokens")
    kinds = fields.integers("tokenizer.ggml.token_type")
    merges = [_merge(line) for line in fields.texts("tokenizer.ggml.merges")]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _TOKEN_CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(directory / "tokenizer.json"))

    def named(key: str) -> str:
        return tokens[fields.integer(f"tokenizer.ggml.{key}_token_id")]

    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "unk_token": named("unknown"),
        "pad_token": named("padding"),
        "additional_special_tokens": [named("bos"), named("eos")],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields.integer("llama.context_length"),
        "chat_template": fields.text("tokenizer.chat_template"),
    }
    _write_json(directory / "tokenizer_config.json", config)


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
