"""Finds stop strings in text that comes piece by piece.

The match is the one that ends first; of those that end together, the longest. So the result does
not depend on how the text is cut. What is held back is the longest end of the text that is a
proper prefix of a stop string, and nothing more: it is what the automatons of Knuth, Morris and
Pratt, one a stop string, have as their states. A character costs the same whatever the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopPush(NamedTuple):
    """What a piece of text led to."""

    emit: str  # Text that may leave now.
    matched_stop: str | None  # The stop string that ended the text.


class StopMatcher:
    """One sequence's stop strings. Not thread-safe."""

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        # The longest first, so that of two that end together it is found first.
        self._automatons = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._include = include_stop_str_in_output
        self._held = ""
        self._matched = False

    def push(self, text: str) -> StopPush:
        """Takes the next text. After a match the rest of the text is dropped for good, and
        nothing may be pushed any more."""
        assert not self._matched, "the text has ended at a stop string"
        # Most text neither continues nor begins a stop string.
        if not self._held and self._first_characters.isdisjoint(text):
            return StopPush(text, None)
        self._held += text
        start = len(self._held) - len(text)
        for end, character in enumerate(text, start=start + 1):
            for automaton in self._automatons:
                automaton.step(character)
            for automaton in self._automatons:
                if automaton.is_matched:
                    return self._match(automaton.stop, end)
        num_held = max(automaton.state for automaton in self._automatons)
        cut = len(self._held) - num_held
        emit, self._held = self._held[:cut], self._held[cut:]
        return StopPush(emit, None)

    def flush(self) -> str:
        """The text that is still held back, when the sequence ended without a match."""
        held, self._held = self._held, ""
        return held

    def _match(self, stop: str, end: int) -> StopPush:
        self._matched = True
        emit = self._held[: end if self._include else end - len(stop)]
        self._held = ""
        return StopPush(emit, stop)


class _Automaton:
    """`state` is the length of the longest prefix of `stop` that the text ends with."""

    __slots__ = ("_fallback", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        # _fallback[n]: the longest proper prefix of stop[:n] that it also ends with.
        self._fallback = [0, 0]
        length = 0
        for character in stop[1:]:
            while length and stop[length] != character:
                length = self._fallback[length]
            length += stop[length] == character
            self._fallback.append(length)

    @property
    def is_matched(self) -> bool:
        return self.state == len(self.stop)

    def step(self, character: str) -> None:
        state = self.state
        while state and self.stop[state] != character:
            state = self._fallback[state]
        self.state = state + (self.stop[state] == character)
