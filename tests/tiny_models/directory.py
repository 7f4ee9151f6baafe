"""Tiny random models of every architecture, with a tokenizer, for tests and load.

Everything follows from the specification and its seed, so two machines make the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from crossdock.models.weights_file import write_safetensors
from tests.tiny_models.spec import CLASS_NAMES, PRESETS, TinyMla, TinyModel, TinyMoe
from tests.tiny_models.tensors import tensor_plans
from tests.tiny_models.tokenizer import write_tiny_tokenizer

__all__ = ["PRESETS", "TinyMla", "TinyModel", "TinyMoe", "write_tiny_model"]


def write_tiny_model(directory: Path, spec: TinyModel | None = None) -> Path:
    """Writes the model as a Hugging Face directory, which is created; returns it."""
    spec = spec or TinyModel()
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(spec))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    )
    _write_weights(directory, spec)
    write_tiny_tokenizer(directory, spec.vocab_size, spec.context)
    return directory


def _config(spec: TinyModel) -> dict[str, Any]:
    config = {
        "architectures": [CLASS_NAMES[spec.architecture]],
        "model_type": spec.architecture,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "max_position_embeddings": spec.context,
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
        "rms_norm_eps": 1e-06 if spec.is_deepseek else 1e-05,
        "rope_scaling": None if spec.rope_scaling is None else dict(spec.rope_scaling),
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[spec.dtype],
        "use_cache": True,
        "vocab_size": spec.vocab_size,
    }
    if spec.fp8:
        config["quantization_config"] = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        }
    if spec.mla is not None:
        config |= _mla_config(spec.mla)
    elif spec.architecture != "qwen2":  # Qwen2's is hidden_size / num_attention_heads.
        config["head_dim"] = spec.head_dim
    if spec.moe is not None:
        config |= _moe_config(spec, spec.moe)
    if spec.architecture == "llama":
        config["mlp_bias"] = False
    if spec.architecture == "mistral":
        config["sliding_window"] = None
    elif spec.architecture.startswith("qwen"):
        # As published: a window that is there and switched off.
        config |= {
            "use_sliding_window": False,
            "sliding_window": spec.context,
            "max_window_layers": spec.num_layers,
        }
    if spec.architecture not in ("mistral", "qwen2"):
        config["attention_bias"] = False
    return config


def _mla_config(mla: TinyMla) -> dict[str, Any]:
    return {
        "q_lora_rank": mla.q_rank,
        "kv_lora_rank": mla.latent_rank,
        "qk_nope_head_dim": mla.nope_dim,
        "qk_rope_head_dim": mla.rope_dim,
        "v_head_dim": mla.value_dim,
    }


def _moe_config(spec: TinyModel, moe: TinyMoe) -> dict[str, Any]:
    shared = {
        "moe_intermediate_size": moe.intermediate,
        "num_experts_per_tok": moe.num_chosen,
        "norm_topk_prob": moe.normalised,
    }
    if spec.architecture == "qwen3_moe":
        return shared | {
            "num_experts": moe.num_experts,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(range(moe.num_dense_layers)),
        }
    return shared | {
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": moe.num_shared,
        "first_k_dense_replace": moe.num_dense_layers,
        "moe_layer_freq": 1,
        "n_group": moe.num_groups,
        "topk_group": moe.num_chosen_groups,
        "topk_method": moe.method,
        "scoring_func": "sigmoid" if moe.method == "noaux_tc" else "softmax",
        "routed_scaling_factor": moe.scale,
    }


def _write_weights(directory: Path, spec: TinyModel) -> None:
    plans = tensor_plans(spec)
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


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
