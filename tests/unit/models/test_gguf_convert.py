from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from crossdock.models.errors import ModelFetchError
from crossdock.models.gguf_convert import convert_gguf
from crossdock.tokenization import ChatTemplate, Tokenizer
from tests.tiny_models.directory import TinyModel, write_tiny_model
from tests.unit.models.tiny_wheel import SPEC, write_gguf


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Path, Path]:
    original = write_tiny_model(tmp_path / "original", SPEC)
    write_gguf(original, tmp_path / "tiny.gguf")
    directory = tmp_path / "converted"
    directory.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", directory, "f32", "made by a test")
    return original, directory


def test_weights_come_back_unchanged(converted: tuple[Path, Path]) -> None:
    original, directory = converted
    wanted = load_file(original / "model.safetensors")
    got = load_file(directory / "model.safetensors")
    assert got.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)


def test_config_comes_back_unchanged(converted: tuple[Path, Path]) -> None:
    original, directory = converted
    for name in ("config.json", "generation_config.json"):
        assert json.loads((directory / name).read_text()) == json.loads(
            (original / name).read_text()
        )


def test_the_tokenizer_cuts_digits_and_knows_its_marks(converted: tuple[Path, Path]) -> None:
    original, directory = converted
    before, after = Tokenizer.load(original), Tokenizer.load(directory)
    text = "<|im_start|>there, h\u00e9 <|im_end|>"
    assert after.encode(text) == before.encode(text)
    assert [after.decode([token_id]) for token_id in after.encode("2026")] == ["2", "0", "2", "6"]
    assert after.special_ids == {0, 1, 2}


def test_the_chat_template_comes_along(converted: tuple[Path, Path]) -> None:
    original, directory = converted
    messages = [{"role": "user", "content": "hi"}]
    before, after = ChatTemplate.load(original), ChatTemplate.load(directory)
    assert before is not None
    assert after is not None
    assert after.render(messages) == before.render(messages)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"pre_tokenizer": "llama-bpe"}, "'llama-bpe'"),
        ({"extra_tensor": "blk.0.attn_q.bias"}, r"blk\.0\.attn_q\.bias"),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    original = write_tiny_model(tmp_path / "original", TinyModel(tied=True))
    write_gguf(original, tmp_path / "tiny.gguf", **changed)
    with pytest.raises(ModelFetchError, match=message):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path, "f32", "")
