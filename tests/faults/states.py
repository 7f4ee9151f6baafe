"""How a fleet of one prefill and one decode instance is brought into each state of the handoff.

Most states are there whenever requests run, and are waited for. The others last only while a peer
stands still: it is stopped, and that holds the other side. Reserving, verifying and revoked begin
and end within one event of the engine's loop: no other process can meet them, and the exhaustive
exploration of the table (native/tests/handoff) covers them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.faults.processes import Place, Processes

SEEN_MAX_S: Final = 20.0
_POLL_S: Final = 0.003
_SETTLED_S: Final = 0.1

PREFILL = Place("prefill-0", "engine")
DECODE = Place("decode-0", "engine")
DECODE_FRONT = Place("decode-0", "front")


@dataclass(frozen=True, slots=True)
class State:
    """A state, whose status shows it, and what holds a handoff in it.

    `before`: stopped before the requests begin. `stop_at`: once that other state is seen, `stop`
    is stopped and, with `cancel`, the requests are cancelled.
    """

    name: str
    side: str  # The instance that is in it.
    counter: str
    before: Place | None = None
    stop_at: tuple[str, str] | None = None
    stop: Place | None = None
    cancel: bool = False
    transport: str = "shm"


STATES: Final = (
    # ---- the receiver's
    # An open of which the decode front, stopped, has not told its engine: P is seen to wait.
    State("pending", "decode-0", "prefill-0 opened", before=DECODE_FRONT),
    State("expected", "decode-0", "decode-0 expected"),
    State("granted", "decode-0", "decode-0 granted"),
    State(
        *("quarantined", "decode-0", "decode-0 quarantined"),
        stop_at=("decode-0", "granted"),
        stop=PREFILL,
        cancel=True,
    ),
    State("committed", "decode-0", "decode-0 committed"),
    # ---- the sender's
    State("waiting", "prefill-0", "prefill-0 waiting"),
    State("opened", "prefill-0", "prefill-0 opened", before=DECODE),
    State("writing", "prefill-0", "prefill-0 writing"),
    # Over TCP nothing lands while the target stands still, so the writes do not end.
    State(
        *("writing to a stopped peer", "prefill-0", "prefill-0 writing"),
        stop_at=("prefill-0", "writing"),
        stop=DECODE,
        transport="tcp",
    ),
    # Over shared memory they end without it, and the commit waits for its answer.
    State(
        *("committing", "prefill-0", "prefill-0 committing"),
        stop_at=("prefill-0", "writing"),
        stop=DECODE,
    ),
    State(
        *("aborting", "prefill-0", "prefill-0 aborting"),
        stop_at=("prefill-0", "writing"),
        stop=DECODE,
        cancel=True,
        transport="tcp",
    ),
    # ---- ended and done: tombstones alone
    State("ended", "", ""),
)


async def see(
    processes: Processes, instance_id: str, state: str, refill: Callable[[], None]
) -> None:
    """Returns once a handoff is in that state, as the instance's own status says."""
    deadline_s = time.monotonic() + SEEN_MAX_S
    while (await processes.counters(instance_id))[f"handoffs_{state}"] == 0:
        assert time.monotonic() < deadline_s, f"{instance_id} was never seen {state}"
        refill()
        await asyncio.sleep(_POLL_S)


async def enter(
    processes: Processes,
    state: State,
    *,
    refill: Callable[[], None],
    cancel_all: Callable[[], None],
) -> None:
    """Returns once the state is reached; what holds it is stopped then.

    `refill` keeps requests running until then, since a prompt that is cached passes by quickly.
    """
    if state.stop_at is not None:
        await _hold(processes, state, refill)
        refill = _nothing
        if state.cancel:
            cancel_all()
    if state.counter:
        instance_id, name = state.counter.split()
        await see(processes, instance_id, name, refill)


async def _hold(processes: Processes, state: State, refill: Callable[[], None]) -> None:
    """Stops the peer while a handoff is in `stop_at`, or has come from there to the state."""
    assert state.stop_at is not None
    assert state.stop is not None
    instance_id, before = state.stop_at
    while True:
        await see(processes, instance_id, before, refill)
        identity = processes.stop(state.stop)
        await asyncio.sleep(_SETTLED_S)  # a signal takes its time, and so do events on their way
        counters = await processes.counters(instance_id)
        if counters[f"handoffs_{before}"] or counters[f"handoffs_{state.counter.split()[1]}"]:
            return
        processes.resume(identity)


def _nothing() -> None:
    """What is held is to be seen, and nothing else would get there."""
