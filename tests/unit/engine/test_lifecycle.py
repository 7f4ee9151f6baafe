"""The tables are closed: no move leaves them, and every life can end."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from crossdock.engine.lifecycle import (
    ENGINE_TRANSITIONS,
    PAIR_TRANSITIONS,
    EngineState,
    Lifecycle,
    PairEvent,
    PairState,
)

TABLES = [
    (PAIR_TRANSITIONS, PairState.CONNECTING, PairState.CLOSED),
    (ENGINE_TRANSITIONS, EngineState.STARTING, EngineState.STOPPED),
]


def _reached(table: Mapping[tuple[Any, Any], Any], start: Enum) -> set[Enum]:
    reached, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        following = {target for (source, _), target in table.items() if source is state} - reached
        reached |= following
        waiting.extend(following)
    return reached


@pytest.mark.parametrize(("table", "first", "last"), TABLES)
def test_every_state_is_reached_and_can_end(
    table: Mapping[tuple[Any, Any], Any], first: Enum, last: Enum
) -> None:
    assert _reached(table, first) == set(type(first))
    for state in type(first):
        assert last in _reached(table, state)


@pytest.mark.parametrize("event", [PairEvent.BROKEN, PairEvent.CLOSED])
@pytest.mark.parametrize("state", PairState)
def test_a_pair_may_end_at_any_time(state: PairState, event: PairEvent) -> None:
    assert (state, event) in PAIR_TRANSITIONS


def test_a_closed_pair_never_comes_back() -> None:
    targets = {t for (s, _), t in PAIR_TRANSITIONS.items() if s is PairState.CLOSED}
    assert targets == {PairState.CLOSED}


def test_a_move_outside_the_table_is_a_bug() -> None:
    life = Lifecycle(PairState.CLOSED, PAIR_TRANSITIONS)
    with pytest.raises(AssertionError, match="CONNECTED"):
        life.advance(PairEvent.CONNECTED)
