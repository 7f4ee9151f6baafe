"""One sequence of tokens out of several sources, by position: none twice, none missing."""

from __future__ import annotations

from collections.abc import Iterable

from crossdock.errors import internal
from services.router.worker import Token


class TokenMerge:
    """Accepts tokens from any source in order of position; passes on what is new.

    The prefill reply and the decode stream both bring the first token, and a replayed attempt
    goes on at the position where the one before ended.
    """

    __slots__ = ("_first_position", "_token_ids")

    def __init__(self, first_position: int) -> None:
        self._first_position = first_position
        self._token_ids: list[int] = []

    @property
    def token_ids(self) -> list[int]:
        """Everything accepted so far."""
        return self._token_ids

    def offer(self, tokens: Iterable[Token]) -> list[Token]:
        """Those that are new. A gap, or another token at a known position, is an engine's bug."""
        fresh: list[Token] = []
        for token in tokens:
            index = token.position - self._first_position
            if index == len(self._token_ids):
                self._token_ids.append(token.token_id)
                fresh.append(token)
            elif not 0 <= index < len(self._token_ids):
                expected = self._first_position + len(self._token_ids)
                raise internal(f"a token at position {token.position} came where {expected} is due")
            elif self._token_ids[index] != token.token_id:
                raise internal(
                    f"two tokens for position {token.position}: {self._token_ids[index]} and "
                    f"{token.token_id}; prefill and decode disagree"
                )
        return fresh
