from __future__ import annotations

import json
from pathlib import Path

import pytest

from crossdock.tokenization import TokenizationError, Tokenizer
from tests.tiny_models.directory import write_tiny_model
from tests.tiny_models.tokenizer import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_special_tokens_in_the_text_become_their_ids(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    ids = tokenizer.encode("<|im_start|>user")
    assert ids[0] == SPECIAL_TOKENS.index("<|im_start|>")
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.decode(ids) == "user"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user"


def test_a_lone_surrogate_is_refused_by_place(directory: Path) -> None:
    with pytest.raises(TokenizationError, match="character 2"):
        Tokenizer.load(directory).encode("ab\ud800")


def test_what_surrounds_a_text_can_be_left_off(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
        },
    }
    path.write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    bare = tokenizer.encode("abc", add_special_tokens=False)
    assert tokenizer.encode("abc") == [1, *bare]


def test_truncation_and_padding_of_the_file_are_ignored(directory: Path, tmp_path: Path) -> None:
    content = json.loads((directory / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 100},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 2,
        "pad_type_id": 0,
        "pad_token": "<|im_end|>",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    text = "zq" * 20
    assert Tokenizer.load(tmp_path).encode(text) == Tokenizer.load(directory).encode(text)
    assert 4 < len(Tokenizer.load(tmp_path).encode(text)) < 100


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Nonsense"}}'])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizationError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizationError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
