"""Text to token ids and back, by the tokenizer.json of a model directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as _Tokenizer


class TokenizationError(ValueError):
    """A text or a token id that cannot be converted, or a broken tokenizer.json."""


def _byte_level_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in a byte-level vocabulary.

    Printable Latin-1 characters stand for their own code; the other bytes, in ascending order,
    are shown by the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    shown = {chr(byte): byte for byte in printable}
    shown.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return shown


_BYTE_OF_CHARACTER: Final = _byte_level_alphabet()


class Tokenizer:
    """A tokenizer of the Hugging Face kind. Immutable once loaded: threads may share it."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        # A tokenizer.json may ask for truncation or padding, which are for training batches.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(
            token_id for token_id, token in added.items() if token.special
        )
        decoder = json.loads(tokenizer.to_str()).get("decoder")
        self._is_byte_level = _is_byte_level(decoder)
        self._bytes_of_id: dict[int, bytes] = {}

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """Reads `directory`/tokenizer.json; raises TokenizationError."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise TokenizationError(f"{path} is missing: fast tokenizers only are supported")
        try:
            return cls(_Tokenizer.from_file(str(path)))
        # The library raises bare Exception for whatever is wrong in the file.
        except Exception as error:
            raise TokenizationError(f"{path} cannot be read: {error}") from error

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of tokens that are control marks, not text."""
        return self._special_ids

    @property
    def is_byte_level(self) -> bool:
        """Whether each token stands for bytes of its own, whatever its neighbours."""
        return self._is_byte_level

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Special tokens that are spelled out in it become their ids.

        `add_special_tokens` also adds what the model wants around a text; leave it off for a
        rendered chat template, which spells its own.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizationError(
                f"the text is not valid Unicode: a lone surrogate at character {error.start}"
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD, unknown ids nothing."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds to a text. For byte-level tokenizers only."""
        assert self._is_byte_level
        known = self._bytes_of_id.get(token_id)
        if known is None:
            token = self._tokenizer.id_to_token(token_id)
            known = self._bytes_of_id[token_id] = b"" if token is None else _bytes_of(token)
        return known


def _bytes_of(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        # An added token, spelled as plain text.
        return token.encode()


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    parts = decoder.get("decoders", [decoder])
    return len(parts) == 1 and parts[0].get("type") == "ByteLevel"
