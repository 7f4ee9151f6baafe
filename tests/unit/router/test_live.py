"""Ids of live requests."""

from __future__ import annotations

import pytest

from crossdock.errors import Code, CrossdockError
from services.router.live import LiveRequests


class Abortion:
    def __init__(self) -> None:
        self.num_aborts = 0

    def abort(self) -> None:
        self.num_aborts += 1


def code_of(live: LiveRequests, request_id: str) -> Code:
    with pytest.raises(CrossdockError) as caught, live.admit(request_id, Abortion()):
        pass
    return caught.value.code


def test_an_id_is_taken_while_it_lives() -> None:
    live = LiveRequests(2)
    with live.admit("a", Abortion()):
        assert code_of(live, "a") is Code.ALREADY_EXISTS
        with live.admit("b", Abortion()):
            assert code_of(live, "c") is Code.RESOURCE_EXHAUSTED
            assert code_of(live, "a") is Code.ALREADY_EXISTS
    assert len(live) == 0
    with live.admit("a", Abortion()):
        assert len(live) == 1


def test_the_id_is_free_after_an_error() -> None:
    live = LiveRequests(1)
    with pytest.raises(RuntimeError), live.admit("a", Abortion()):
        raise RuntimeError
    assert len(live) == 0


def test_abort_reaches_the_request_with_the_id() -> None:
    live = LiveRequests(2)
    first, second = Abortion(), Abortion()
    with live.admit("a", first), live.admit("b", second):
        live.abort("b")
    assert (first.num_aborts, second.num_aborts) == (0, 1)
    with pytest.raises(CrossdockError) as caught:
        live.abort("b")
    assert caught.value.code is Code.NOT_FOUND
