"""Text from token ids as they come, piece by piece.

A character may span several tokens, so a piece of text leaves only once it cannot change. There
are two kinds of tokenizers. In a byte-level one each token is a run of bytes, and an incremental
UTF-8 decoder is exact. In the others (SentencePiece and its kind) the text of a token depends on
its neighbours; there a short window of tokens is decoded twice, without and with the new ones,
and the difference is the new text.

For valid text, and for anything at all in a byte-level vocabulary, the pieces put together are
what decoding all ids at once gives.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from crossdock.tokenization.tokenizer import Tokenizer

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
# A character is at most four bytes, so at most four byte tokens; a window that still ends in a
# replacement character after twice that is not going to become valid.
_UNSETTLED_TOKENS_MAX: Final = 8
# How many tokens before the first one may shape its text (a space that only shows inside).
_CONTEXT_TOKENS: Final = 4


class Detokenizer(Protocol):
    """One sequence's text. Not thread-safe."""

    def push(self, ids: Sequence[int]) -> str:
        """Takes the next ids and returns the text that is now settled; may be empty."""

    def flush(self) -> str:
        """The rest, at the end of the sequence; an unfinished character becomes U+FFFD."""


def make_detokenizer(
    tokenizer: Tokenizer,
    *,
    skip_special_tokens: bool = True,
    context_ids: Sequence[int] = (),
) -> Detokenizer:
    """A detokenizer for one sequence. `context_ids` are the ids before it, the prompt's, which
    some tokenizers need to know whether the first word begins with a space."""
    if tokenizer.is_byte_level:
        return ByteDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return WindowDetokenizer(
        tokenizer, skip_special_tokens=skip_special_tokens, context_ids=context_ids
    )


class ByteDetokenizer:
    """For byte-level tokenizers: exact, and each token costs its own bytes."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """See Detokenizer."""
        token_bytes = self._tokenizer.token_bytes
        skipped = self._skipped
        return self._decoder.decode(b"".join(token_bytes(i) for i in ids if i not in skipped))

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For tokenizers whose text of a token depends on the tokens beside it.

    The window is [settled tokens of the last piece | unsettled tokens]; its length is bounded, so
    a token costs the same however long the sequence is.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        context_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped
        self._settled = [i for i in context_ids if i not in skipped][-_CONTEXT_TOKENS:]
        self._unsettled: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """See Detokenizer."""
        return "".join(self._push_one(token_id) for token_id in ids)

    def flush(self) -> str:
        """See Detokenizer."""
        return self._settle(self._new_text()) if self._unsettled else ""

    def _push_one(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        self._unsettled.append(token_id)
        text = self._new_text()
        unfinished = text.endswith(_REPLACEMENT) or not text
        if unfinished and len(self._unsettled) < _UNSETTLED_TOKENS_MAX:
            return ""
        return self._settle(text)

    def _new_text(self) -> str:
        before = self._decode(self._settled)
        both = self._decode(self._settled + self._unsettled)
        if both.startswith(before):
            return both[len(before) :]
        # The new tokens changed what had left already (bytes that turned out invalid).
        return self._decode(self._unsettled)

    def _settle(self, text: str) -> str:
        if text:
            self._settled, self._unsettled = self._unsettled, []
        else:
            self._settled = (self._settled + self._unsettled)[-_CONTEXT_TOKENS:]
            self._unsettled = []
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
