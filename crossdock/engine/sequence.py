"""One sequence as a front follows it: its events in order, until it is over."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

from crossdock import _native as native
from crossdock.errors import (
    Code,
    CrossdockError,
    Reason,
    cancelled,
    handoff_lost,
    handoff_refused,
    overloaded,
)

SequenceEvent: TypeAlias = native.SequenceToken | native.Started | native.HandoffDone


class EngineSequence:
    """Filled by the engine's dispatch, emptied by one reader. Used on one event loop."""

    def __init__(self, sequence_id: int, *, local: bool) -> None:
        self.sequence_id = sequence_id
        self._local = local
        self._events: deque[SequenceEvent] = deque()
        self._wake = asyncio.Event()
        self._error: CrossdockError | None = None
        self.over = False

    def push(self, event: SequenceEvent) -> None:
        self._events.append(event)
        match event:
            case native.SequenceToken():
                self.over = event.finish != native.Finish.NONE
            case native.HandoffDone():
                self.over = True
        self._wake.set()

    def fail(self, error: CrossdockError) -> None:
        self.over = True
        self._error = error
        self._wake.set()

    def end(self, ended: native.Ended) -> None:
        self.fail(ended_error(ended, local=self._local))

    async def take(self) -> list[SequenceEvent]:
        """All events that are there, at least one. Raises what the sequence ended with, after
        the events that preceded it.
        """
        while not self._events:
            if self._error is not None:
                raise self._error
            assert not self.over, "take after the last event"
            self._wake.clear()
            await self._wake.wait()
        events = list(self._events)
        self._events.clear()
        return events


def ended_error(ended: native.Ended, *, local: bool) -> CrossdockError:
    """The engine's code as an error; `local`: the sequence involves no handoff."""
    message = ended.message or "the engine ended the request"
    code = Code(ended.code)
    if code is Code.CANCELLED:
        return cancelled(message)
    if code is Code.RESOURCE_EXHAUSTED:
        return overloaded(message) if local else handoff_refused(message)
    if code is Code.UNAVAILABLE and not local:
        return handoff_lost(message)
    return CrossdockError(code, message, Reason.INTERNAL)
