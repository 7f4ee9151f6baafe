"""Ids of live requests are unique, and free again afterwards."""

from __future__ import annotations

import pytest

from crossdock.engine.live import LiveRequests
from crossdock.errors import Code, CrossdockError
from tests.fakes.requests import request


def test_a_live_request_id_is_refused_by_name() -> None:
    live = LiveRequests()
    with live.claim(request()), pytest.raises(CrossdockError) as raised:
        live.claim(request(handoff_id=b"y" * 16)).__enter__()
    assert (raised.value.code, raised.value.field) == (Code.ALREADY_EXISTS, "request_id")


def test_a_live_handoff_id_is_refused_by_name() -> None:
    live = LiveRequests()
    with live.claim(request()), pytest.raises(CrossdockError) as raised:
        live.claim(request(request_id="r-2")).__enter__()
    assert (raised.value.code, raised.value.field) == (Code.ALREADY_EXISTS, "handoff_id")
    with live.claim(request(request_id="r-2")):
        pass


def test_the_next_attempt_may_meet_the_former_one() -> None:
    live = LiveRequests()
    with live.claim(request()), live.claim(request(attempt=2, handoff_id=b"y" * 16)):
        assert len(live) == 2
    assert len(live) == 0


def test_a_refused_claim_takes_nothing() -> None:
    live = LiveRequests()
    with live.claim(request()):
        for _ in range(2):
            with pytest.raises(CrossdockError):
                live.claim(request()).__enter__()
    with live.claim(request()):
        assert len(live) == 1
