"""Text out of tokens, and what waits for a slow reader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdock.errors import CrossdockError, internal
from crossdock.tokenization import StopMatcher, Tokenizer, make_detokenizer
from services.router.output import (
    Ending,
    FinishReason,
    Outbox,
    TextAssembler,
    Timings,
    Usage,
)
from services.router.worker import Token
from tests.tiny_models.directory import write_tiny_model

EOS = 2
ENDING = Ending(FinishReason.STOP, "", Usage(1, 2), Timings())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("model")
    return Tokenizer.load(write_tiny_model(directory))


def assemble(tokenizer: Tokenizer, text: str, *stops: str) -> tuple[str, str | None, int]:
    """The output, what matched, and how many tokens it took."""
    assembler = TextAssembler(make_detokenizer(tokenizer), StopMatcher(stops), frozenset({EOS}))
    out = ""
    ids = tokenizer.encode(text)
    for index, token_id in enumerate(ids):
        out += assembler.push(Token(token_id, index))
        if assembler.matched_stop is not None:
            return out, assembler.matched_stop, index + 1
    return out + assembler.flush(), assembler.matched_stop, len(ids)


@pytest.mark.parametrize("text", ["plain", "höjd 🦆🦆 日本", "a\n\nb", ""])
def test_pieces_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert assemble(tokenizer, text)[0] == text


def test_a_stop_string_ends_the_text_before_it(tokenizer: Tokenizer) -> None:
    text, matched, num_tokens = assemble(tokenizer, "one END two", "END", "two")
    assert (text, matched) == ("one ", "END")
    assert num_tokens <= len(tokenizer.encode("one END"))


def test_a_prefix_of_a_stop_string_at_the_end_is_text(tokenizer: Tokenizer) -> None:
    assert assemble(tokenizer, "one EN", "END")[:2] == ("one EN", None)


def test_an_unfinished_character_at_the_end_is_replaced(tokenizer: Tokenizer) -> None:
    assembler = TextAssembler(make_detokenizer(tokenizer), StopMatcher(["\ufffd"]), frozenset())
    first_byte = tokenizer.encode("🦆")[0]
    assert assembler.push(Token(first_byte, 0)) == ""
    assert assembler.flush() == ""
    assert assembler.matched_stop == "\ufffd"


def test_a_stop_id_is_no_text(tokenizer: Tokenizer) -> None:
    [letter] = tokenizer.encode("q")
    assembler = TextAssembler(make_detokenizer(tokenizer), StopMatcher([]), frozenset({letter}))
    assert assembler.push(Token(letter, 0)) == ""


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(0, 100))
async def test_outbox_gives_everything_once_whatever_the_reader_misses(
    puts: list[int], seed: int
) -> None:
    outbox = Outbox()
    count = 0
    texts: list[str] = []
    ids: list[int] = []
    for step, size in enumerate(puts):
        tokens = [Token(count + index, count + index) for index in range(size)]
        outbox.put("x" * size, tokens)
        count += size
        if (seed >> (step % 7)) & 1:
            delta = await asyncio.wait_for(outbox.take(), 5)
            texts.append(delta.text)
            ids += delta.token_ids
    outbox.finish(ENDING)
    last = await asyncio.wait_for(outbox.take(), 5)
    assert last.ending is ENDING
    assert ids + last.token_ids == list(range(count))
    assert "".join(texts) + last.text == "x" * count


async def test_outbox_delivers_what_waits_before_the_error() -> None:
    outbox = Outbox()
    outbox.put("a", [Token(1, 1)])
    outbox.fail(internal("broken"))
    assert (await outbox.take()).text == "a"
    for _ in range(2):
        with pytest.raises(CrossdockError, match="broken"):
            await outbox.take()


async def test_outbox_has_one_end() -> None:
    outbox = Outbox()
    outbox.finish(ENDING)
    assert outbox.ended
    with pytest.raises(AssertionError):
        outbox.fail(internal("late"))
