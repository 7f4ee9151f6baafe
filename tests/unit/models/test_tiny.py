from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import load_file

from crossdock.models.cache import check_model_directory, weight_files
from crossdock.tokenization import Tokenizer
from tests.tiny_models.directory import PRESETS, TinyModel, TinyMoe, write_tiny_model
from tests.tiny_models.e4m3 import from_e4m3

REPOSITORY = Path(__file__).parents[3]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_one_specification_gives_the_same_bytes(tmp_path: Path) -> None:
    first = contents(write_tiny_model(tmp_path / "a"))
    assert first == contents(write_tiny_model(tmp_path / "b"))
    other = contents(write_tiny_model(tmp_path / "c", TinyModel(seed=1)))
    assert other["model.safetensors"] != first["model.safetensors"]
    assert other["config.json"] == first["config.json"]


def test_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "whole", TinyModel(num_layers=3))
    cut = write_tiny_model(tmp_path / "cut", TinyModel(num_layers=3, num_shards=3))
    check_model_directory(cut)
    files = weight_files(cut)
    assert len(files) == 3
    index = json.loads((cut / "model.safetensors.index.json").read_text())["weight_map"]
    gathered: dict[str, Any] = {}
    for file in files:
        tensors = load_file(file)
        assert all(index[name] == file.name for name in tensors)
        gathered |= tensors
    wanted = load_file(whole / "model.safetensors")
    assert gathered.keys() == wanted.keys() == index.keys()
    assert all(np.array_equal(gathered[name], wanted[name]) for name in wanted)


def test_shapes_follow_the_specification(tmp_path: Path) -> None:
    spec = TinyModel(
        num_layers=1, hidden=48, intermediate=80, num_heads=6, num_kv_heads=3, head_dim=10
    )
    tensors = load_file(write_tiny_model(tmp_path, spec) / "model.safetensors")
    shapes = {
        name.removeprefix("model.layers.0."): tensor.shape for name, tensor in tensors.items()
    }
    assert shapes == {
        "model.embed_tokens.weight": (512, 48),
        "input_layernorm.weight": (48,),
        "self_attn.q_proj.weight": (60, 48),
        "self_attn.k_proj.weight": (30, 48),
        "self_attn.v_proj.weight": (30, 48),
        "self_attn.o_proj.weight": (48, 60),
        "post_attention_layernorm.weight": (48,),
        "mlp.gate_proj.weight": (80, 48),
        "mlp.up_proj.weight": (80, 48),
        "mlp.down_proj.weight": (48, 80),
        "model.norm.weight": (48,),
        "lm_head.weight": (512, 48),
    }


def test_fp8_matrices_come_with_the_scales_of_their_blocks(tmp_path: Path) -> None:
    plain = dataclasses.replace(PRESETS["deepseek_v3"], hidden=150, intermediate=300)
    written = write_tiny_model(tmp_path / "fp8", dataclasses.replace(plain, fp8=True))
    raw_file = (written / "model.safetensors").read_bytes()
    tensors = deserialize(raw_file)  # type: ignore[no-untyped-call]
    found = {
        name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in tensors
    }
    wanted = load_file(write_tiny_model(tmp_path / "plain", plain) / "model.safetensors")
    assert {name for name in found if not name.endswith("_scale_inv")} == wanted.keys()
    for name, values in wanted.items():
        dtype, shape, raw = found[name]
        assert shape == values.shape
        if name + "_scale_inv" not in found:
            assert dtype == "F32", name
            continue
        assert dtype == "F8_E4M3", name
        _, blocks, scales_raw = found[name + "_scale_inv"]
        assert blocks == tuple(-(-size // 128) for size in shape)
        scales = np.frombuffer(scales_raw, np.float32).reshape(blocks)
        spread = scales.repeat(128, 0).repeat(128, 1)[: shape[0], : shape[1]]
        read = from_e4m3(np.frombuffer(raw, np.uint8).reshape(shape)) * spread
        # Three bits of mantissa are kept; values under the normal ones have a fixed step.
        bound = np.maximum(np.abs(values) * 2.0**-4, spread * 2.0**-10)
        assert np.all(np.abs(read - values) <= bound * 1.0001), name
    assert sum(name.endswith("_scale_inv") for name in found) > 30


@pytest.mark.parametrize("vocab_size", [259, 260, 1000, 8192])
def test_every_id_is_a_token(tmp_path: Path, vocab_size: int) -> None:
    tokenizer = Tokenizer.load(write_tiny_model(tmp_path, TinyModel(vocab_size=vocab_size)))
    assert all(tokenizer.token_bytes(token_id) for token_id in range(vocab_size))
    assert tokenizer.token_bytes(vocab_size) == b""
    text = "the tiny 漢字 \x00\x7f"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"vocab_size": 258}, "vocab_size"),
        ({"num_heads": 3, "num_kv_heads": 2}, "num_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"num_shards": 3}, "num_shards"),
        ({"num_shards": 0}, "num_shards"),
        ({"architecture": "qwen2", "head_dim": 20}, "head_dim"),
        ({"architecture": "deepseek_v3"}, "mla"),
        ({"moe": TinyMoe()}, "moe"),
    ],
)
def test_an_impossible_shape_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TinyModel(**values)


def test_the_tool_writes_what_its_flags_say(tmp_path: Path) -> None:
    tool = [sys.executable, "-m", "tests.tiny_models"]
    flags = ["--architecture", "deepseek_v3", "--dtype", "bf16", "--tied", "--no-fp8"]
    flags += ["--num-layers", "4", "--num-shards", "2", "--seed", "9"]
    done = subprocess.run(
        [*tool, str(tmp_path / "a"), *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    spec = dataclasses.replace(
        PRESETS["deepseek_v3"], num_layers=4, dtype="bf16", tied=True, num_shards=2, seed=9
    )
    assert contents(tmp_path / "a") == contents(write_tiny_model(tmp_path / "b", spec))
    refused = subprocess.run(
        [*tool, str(tmp_path / "c"), "--head-dim", "3"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    assert refused.returncode == 2
    assert "head_dim" in refused.stderr
