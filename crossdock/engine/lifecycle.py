"""The life cycles of this package, each a table that owns its transitions.

A pair, seen from one of its two fronts:

1. CONNECTING: the engine was told `ConnectPeer`; hellos have not crossed yet.
2. READY: the engine said `PeerConnected`; handoffs may run over the pair.
3. BREAKING: either side ended it (stream, engine or transport); the engine was told
   `DisconnectPeer` and may still have operations in flight.
4. CLOSED: the engine said `PeerDown(closed)`, or is gone itself: nothing of ours is in flight.
   Only now may the same two engines pair again.

An engine, seen from its supervisor:

1. STARTING: the process runs and loads the model.
2. SERVING: it said `Ready`; it has an epoch.
3. DRAINING: too much of its slab is in quarantine; it takes nothing new and then ends.
4. DOWN: the process ended, whatever the cause. The next one starts with a new epoch.
5. STOPPED: the service ends; no other engine follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Generic, TypeVar

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class PairState(Enum):
    """Where a pair is in its life."""

    CONNECTING = auto()
    READY = auto()
    BREAKING = auto()
    CLOSED = auto()


class PairEvent(Enum):
    """What moves a pair."""

    CONNECTED = auto()
    BROKEN = auto()
    CLOSED = auto()


PAIR_TRANSITIONS: Final[Mapping[tuple[PairState, PairEvent], PairState]] = {
    (PairState.CONNECTING, PairEvent.CONNECTED): PairState.READY,
    (PairState.CONNECTING, PairEvent.BROKEN): PairState.BREAKING,
    (PairState.CONNECTING, PairEvent.CLOSED): PairState.CLOSED,
    (PairState.READY, PairEvent.BROKEN): PairState.BREAKING,
    (PairState.READY, PairEvent.CLOSED): PairState.CLOSED,
    # The engine's PeerConnected was on its way when the stream ended.
    (PairState.BREAKING, PairEvent.CONNECTED): PairState.BREAKING,
    (PairState.BREAKING, PairEvent.BROKEN): PairState.BREAKING,
    (PairState.BREAKING, PairEvent.CLOSED): PairState.CLOSED,
    (PairState.CLOSED, PairEvent.BROKEN): PairState.CLOSED,
    (PairState.CLOSED, PairEvent.CLOSED): PairState.CLOSED,
}


class EngineState(Enum):
    """Where the supervised engine is in its life."""

    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    DOWN = auto()
    STOPPED = auto()


class EngineEvent(Enum):
    """What moves an engine."""

    READY = auto()
    OUTWORN = auto()
    EXITED = auto()
    STARTED = auto()
    STOPPED = auto()


ENGINE_TRANSITIONS: Final[Mapping[tuple[EngineState, EngineEvent], EngineState]] = {
    (EngineState.STARTING, EngineEvent.READY): EngineState.SERVING,
    (EngineState.STARTING, EngineEvent.EXITED): EngineState.DOWN,
    (EngineState.STARTING, EngineEvent.STOPPED): EngineState.STOPPED,
    (EngineState.SERVING, EngineEvent.OUTWORN): EngineState.DRAINING,
    (EngineState.SERVING, EngineEvent.EXITED): EngineState.DOWN,
    (EngineState.SERVING, EngineEvent.STOPPED): EngineState.STOPPED,
    (EngineState.DRAINING, EngineEvent.EXITED): EngineState.DOWN,
    (EngineState.DRAINING, EngineEvent.STOPPED): EngineState.STOPPED,
    (EngineState.DOWN, EngineEvent.STARTED): EngineState.STARTING,
    (EngineState.DOWN, EngineEvent.STOPPED): EngineState.STOPPED,
    (EngineState.STOPPED, EngineEvent.STOPPED): EngineState.STOPPED,
}


class Lifecycle(Generic[State, Event]):
    """A state that moves by its table alone. A move that is not in the table is a bug."""

    def __init__(self, initial: State, transitions: Mapping[tuple[State, Event], State]) -> None:
        self.state = initial
        self._transitions = transitions

    def advance(self, event: Event) -> bool:
        """Whether the state changed."""
        following = self._transitions.get((self.state, event))
        assert following is not None, f"{event} in {self.state}"
        changed = following is not self.state
        self.state = following
        return changed
