"""No token twice, none missing, whatever the sources send again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdock.errors import CrossdockError
from services.router.merge import TokenMerge
from services.router.worker import Token

START = 5


def tokens(*positions: int) -> list[Token]:
    return [Token(position * 11, position) for position in positions]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=40))
def test_any_overlapping_runs_give_one_sequence(runs: list[tuple[int, int]]) -> None:
    merge = TokenMerge(START)
    out: list[Token] = []
    for back, length in runs:
        first = max(START, START + len(out) - back)
        out += merge.offer(tokens(*range(first, first + length)))
    assert out == tokens(*range(START, START + len(out)))
    assert merge.token_ids == [token.token_id for token in out]


def test_a_gap_is_an_error() -> None:
    with pytest.raises(CrossdockError, match="position 7 came where 6 is due"):
        TokenMerge(START).offer(tokens(5, 7))


def test_a_position_in_the_prompt_is_an_error() -> None:
    with pytest.raises(CrossdockError, match="position 4"):
        TokenMerge(START).offer(tokens(4))


def test_another_token_at_a_known_position_is_an_error() -> None:
    merge = TokenMerge(START)
    merge.offer(tokens(5))
    with pytest.raises(CrossdockError, match="disagree"):
        merge.offer([Token(1, 5)])
