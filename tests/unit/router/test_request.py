"""The table of a request's life."""

from __future__ import annotations

import pytest

from services.router.request import TRANSITIONS, RequestEvent, RequestLife, RequestState


def test_every_state_can_end_and_nothing_follows_the_end() -> None:
    for state in RequestState:
        ends = (state, RequestEvent.END) in TRANSITIONS
        assert ends is (state is not RequestState.FINISHED)
    assert not any(state is RequestState.FINISHED for state, _ in TRANSITIONS)


def test_no_token_comes_before_an_attempt() -> None:
    with pytest.raises(AssertionError):
        RequestLife(0.0).token(1.0)


def test_it_ends_once() -> None:
    life = RequestLife(0.0)
    life.end()
    with pytest.raises(AssertionError):
        life.end()


def test_a_further_attempt_does_not_lead_back() -> None:
    life = RequestLife(0.0)
    life.dispatch()
    life.token(1.0)
    life.dispatch()
    assert life.state is RequestState.STREAMING


def test_times() -> None:
    life = RequestLife(10.0)
    assert (life.ttft_ms(), life.tpot_ms()) == (0.0, 0.0)
    life.dispatch()
    life.token(10.5)
    assert (life.ttft_ms(), life.tpot_ms()) == (500.0, 0.0)
    life.token(11.0)
    life.token(11.5)
    assert life.tpot_ms() == 500.0
