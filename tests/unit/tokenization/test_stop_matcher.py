from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crossdock.tokenization import StopMatcher

# Two letters make overlaps, and prefixes that are suffixes, frequent.
texts = st.text("ab", max_size=40)
stops_strategy = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The whole output, by looking at every end of the whole text."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


def run(text: str, stops: list[str], cuts: list[int], include: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop_str_in_output=include)
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    output = ""
    for start, end in itertools.pairwise(edges):
        push = matcher.push(text[start:end])
        output += push.emit
        if push.matched_stop is not None:
            return output, push.matched_stop
    return output + matcher.flush(), None


@given(
    text=texts,
    stops=stops_strategy,
    cuts=st.lists(st.integers(0, 40), max_size=20),
    include=st.booleans(),
)
@example(text="aabab", stops=["abab"], cuts=[1, 2, 3, 4], include=False)
@example(text="aba", stops=["ba", "aba"], cuts=[], include=True)
def test_equals_looking_at_the_whole_text(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    assert run(text, stops, cuts, include) == naive(text, stops, include)


@given(text=texts, stops=stops_strategy)
def test_holds_back_exactly_the_longest_proper_prefix(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted, seen = "", ""
    for character in text:
        seen += character
        push = matcher.push(character)
        emitted += push.emit
        if push.matched_stop is not None:
            return
        ends = [seen[len(seen) - n :] for n in range(len(seen) + 1)]
        held = max(
            (end for end in ends if any(s.startswith(end) and s != end for s in stops)),
            key=len,
            default="",
        )
        assert emitted + held == seen


def test_without_stop_strings_everything_passes_at_once() -> None:
    assert StopMatcher([]).push("any text") == ("any text", None)


def test_text_after_a_match_is_dropped() -> None:
    assert StopMatcher(["\n\n"]).push("one\n\ntwo\n\n") == ("one", "\n\n")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_pushing_after_a_match_is_a_programmer_error() -> None:
    matcher = StopMatcher(["a"])
    matcher.push("a")
    with pytest.raises(AssertionError):
        matcher.push("b")
