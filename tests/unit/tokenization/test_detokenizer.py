from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdock.tokenization import (
    ByteDetokenizer,
    Detokenizer,
    Tokenizer,
    WindowDetokenizer,
    make_detokenizer,
)
from tests.tiny_models.directory import TinyModel, write_tiny_model
from tests.unit.tokenization.sentencepiece import END_ID, sentencepiece_tokenizer

VOCAB_SIZE = 600
FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tiny")
    return Tokenizer.load(write_tiny_model(directory, TinyModel(vocab_size=VOCAB_SIZE)))


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return sentencepiece_tokenizer()


def pushed(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> str:
    """All the text, the ids pushed in pieces that begin at the cuts."""
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [ids[start:end] for start, end in itertools.pairwise(edges)]
    return "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.flush()


cuts_strategy = st.lists(st.integers(0, 200), max_size=30)


@given(
    # Random ids are mostly invalid UTF-8; ids past the vocabulary stand for nothing.
    ids=st.lists(st.integers(0, VOCAB_SIZE + 3), max_size=60),
    cuts=cuts_strategy,
    skip=st.booleans(),
)
def test_byte_level_pieces_equal_the_whole_for_any_ids(
    byte_level: Tokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    detokenizer = make_detokenizer(byte_level, skip_special_tokens=skip)
    assert isinstance(detokenizer, ByteDetokenizer)
    assert pushed(detokenizer, ids, cuts) == byte_level.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=60), cuts=cuts_strategy)
def test_byte_level_gives_back_any_text(byte_level: Tokenizer, text: str, cuts: list[int]) -> None:
    # The text may spell a special token.
    detokenizer = make_detokenizer(byte_level, skip_special_tokens=False)
    assert pushed(detokenizer, byte_level.encode(text), cuts) == text


@given(text=st.text(max_size=60), cuts=cuts_strategy)
def test_sentencepiece_pieces_equal_the_whole(
    sentencepiece: Tokenizer, text: str, cuts: list[int]
) -> None:
    ids = sentencepiece.encode(text)
    detokenizer = make_detokenizer(sentencepiece)
    assert isinstance(detokenizer, WindowDetokenizer)
    # The library folds what stands for a space; its own decoding is the measure.
    assert pushed(detokenizer, ids, cuts) == sentencepiece.decode(ids)


@pytest.mark.parametrize("text", [FAMILY, "\N{REGIONAL INDICATOR SYMBOL LETTER F}", "naïve 北京"])
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_no_piece_holds_a_broken_character(
    text: str, kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)  # Characters do span tokens here.
    detokenizer = make_detokenizer(tokenizer)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert detokenizer.flush() == ""
    assert "".join(pieces) == text


def test_a_character_leaves_with_its_last_token(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("\N{EURO SIGN}x")
    detokenizer = make_detokenizer(byte_level)
    assert [detokenizer.push([token_id]) for token_id in ids] == ["", "", "\N{EURO SIGN}", "x"]


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_an_unfinished_character_is_replaced_at_the_end(
    kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    detokenizer = make_detokenizer(tokenizer)
    text = detokenizer.push(tokenizer.encode("a\N{EURO SIGN}")[:-1])
    assert text == "a"
    assert set(detokenizer.flush()) == {"\N{REPLACEMENT CHARACTER}"}
    assert detokenizer.flush() == ""


def test_endless_invalid_bytes_do_not_pile_up(sentencepiece: Tokenizer) -> None:
    detokenizer = WindowDetokenizer(sentencepiece)
    continuation_byte = 1 + 0x80
    text = "".join(detokenizer.push([continuation_byte]) for _ in range(1000))
    assert len(text) > 980
    assert set(text) == {"\N{REPLACEMENT CHARACTER}"}


def test_a_real_replacement_character_passes(
    byte_level: Tokenizer, sentencepiece: Tokenizer
) -> None:
    for tokenizer in (byte_level, sentencepiece):
        ids = tokenizer.encode("a\N{REPLACEMENT CHARACTER}b")
        assert pushed(make_detokenizer(tokenizer), ids, [1, 2, 3, 4]) == tokenizer.decode(ids)


def test_the_first_word_keeps_its_space_after_a_prompt(sentencepiece: Tokenizer) -> None:
    prompt, continuation = sentencepiece.encode("abc"), sentencepiece.encode("the")
    alone = make_detokenizer(sentencepiece)
    after = make_detokenizer(sentencepiece, context_ids=prompt)
    assert alone.push(continuation) == "the"
    assert after.push(continuation) == " the"


def test_special_tokens_are_skipped_or_shown(sentencepiece: Tokenizer) -> None:
    ids = [*sentencepiece.encode("abc"), END_ID]
    hidden = make_detokenizer(sentencepiece)
    shown = make_detokenizer(sentencepiece, skip_special_tokens=False)
    assert hidden.push(ids) + hidden.flush() == "abc"
    assert shown.push(ids) + shown.flush() == "abc</s>"
