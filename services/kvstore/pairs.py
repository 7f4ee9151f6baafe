"""The store's side of its pairs with engines. It posts nothing itself: it lets them in and out.

Life of a pair: lifecycle.PAIR_TRANSITIONS, driven by the segment's events instead of an engine's.
What its end means for the engine's leases:

1. The pair breaks (stream, transport): reads end, reservations are quarantined, since writes of the
   engine may still land.
2. Proof that none can: the segment says so at once (the endpoint is closed) or later (the process
   is gone), or the same engine connects again, which its front has it do only once it has closed
   the former pair. The quarantine ends. Another engine of the same instance proves nothing: its
   predecessor may be stopped in the middle of a copy.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from crossdock import _native as native
from crossdock.engine.lifecycle import PairEvent, PairState
from crossdock.engine.peers import Pair, PairTable, PairTerms, Remote
from crossdock.errors import CrossdockError, invalid_argument, stale_epoch, unreachable
from services.kvstore.tier import Tier

_log = structlog.get_logger("services.kvstore.pairs")


class Segment(Protocol):
    """The slab as peers reach it. `native.Segment`, or a fake."""

    @property
    def descriptor(self) -> bytes: ...
    @property
    def event_fd(self) -> int: ...
    def connect(self, *, peer_id: int, incarnation: int, descriptor: bytes) -> None: ...
    def disconnect(self, peer_id: int) -> None: ...
    def drain(self) -> list[native.PeerReady | native.PeerBroken | native.PeerClosed]: ...


class StorePairs(PairTable):
    """All pairs of the store."""

    def __init__(self, segment: Segment, tier: Tier) -> None:
        super().__init__()
        self._segment = segment
        self._tier = tier
        # Peers that are closed here while their writes may still land: the epochs of their engines.
        self._unproven: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(segment.event_fd, self._on_events)

    async def connect(self, remote: Remote, terms: PairTerms) -> Pair:
        """Lets an engine in. A former pair with the same instance is closed first."""
        name = remote.instance_id
        await self.wait_gone(name, unreachable(f"{name} connected again"))
        self._forget(remote.epoch)
        self._tier.check(remote.block_stride_bytes, name)
        pair = self._make(remote, terms, store=True)
        try:
            self._segment.connect(
                peer_id=pair.peer_id, incarnation=terms.incarnation, descriptor=remote.descriptor
            )
        except native.StatusError as error:
            raise invalid_argument("endpoint.descriptor", error.args[1]) from error
        # Only now: the first engine that is admitted decides the size of the slots.
        self._tier.admit(remote.epoch, remote.block_stride_bytes, name)
        self._pairs[pair.peer_id] = pair
        return pair

    def disconnect(self, pair: Pair, error: CrossdockError) -> None:
        """See PairTable."""
        if not pair.advance(PairEvent.BROKEN, error):
            return
        self._tier.part(pair.remote.epoch)
        self._segment.disconnect(pair.peer_id)
        _log.info("pair_ended", peer=pair.remote.instance_id, error=error.message)

    def epoch_of(self, incarnation: int) -> int:
        """Of the engine whose pair it is. A call of a pair that has ended may come late, even when
        its engine is connected again: nobody would know of what it is granted.
        """
        for pair in self:
            if pair.usable and pair.incarnation == incarnation:
                return pair.remote.epoch
        raise stale_epoch(f"no pair {incarnation:016x} is connected; call Connect first")

    def close(self) -> None:
        """The service ends."""
        self._loop.remove_reader(self._segment.event_fd)

    def _on_events(self) -> None:
        for event in self._segment.drain():
            match event:
                case native.PeerReady():
                    self._on_ready(event)
                case native.PeerBroken():
                    pair = self._pairs.get(event.peer_id)
                    if pair is not None:
                        name = pair.remote.instance_id
                        self.disconnect(pair, unreachable(f"pair with {name}: {event.message}"))
                case native.PeerClosed():
                    self._on_closed(event)

    def _on_ready(self, event: native.PeerReady) -> None:
        pair = self._pairs.get(event.peer_id)
        if pair is not None:
            pair.travel_by(event)
            pair.advance(PairEvent.CONNECTED)

    def _on_closed(self, event: native.PeerClosed) -> None:
        """Comes once more, with the proof, where the first one had none."""
        pair = self._pairs.pop(event.peer_id, None)
        if pair is not None:
            assert pair.state is PairState.BREAKING, "the segment closes what it was told to"
            pair.advance(PairEvent.CLOSED)
            self._unproven[event.peer_id] = pair.remote.epoch
        if event.writes_stopped and event.peer_id in self._unproven:
            self._tier.prove_silent(self._unproven.pop(event.peer_id))

    def _forget(self, epoch: int) -> None:
        """The engine connects again: what it did before is over, and later proof of that says
        nothing about what it does from now on.
        """
        former = [peer_id for peer_id, other in self._unproven.items() if other == epoch]
        for peer_id in former:
            del self._unproven[peer_id]
            self._tier.prove_silent(epoch)
