"""The pairs of one engine life, as lifecycle.py tells them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from crossdock import _native as native
from crossdock.engine import limits
from crossdock.engine.lifecycle import PAIR_TRANSITIONS, Lifecycle, PairEvent, PairState
from crossdock.errors import Code, CrossdockError, Reason, layout_mismatch, stale_epoch, unreachable

_log = structlog.get_logger("crossdock.engine.peers")

MAC_KEY_BYTES: Final = 32
# Pairs that have ended, remembered: more than there are instances to pair with.
_FORMER_MAX: Final = 1_024

# Named in status replies.
_STATE_NAME: Final = {
    PairState.CONNECTING: "connecting",
    PairState.READY: "ready",
    PairState.BREAKING: "broken",
    PairState.CLOSED: "broken",
}


@dataclass(frozen=True)
class Remote:
    """The other engine of a pair, as its front describes it."""

    instance_id: str
    epoch: int
    descriptor: bytes
    layout: bytes
    layout_text: str
    block_stride_bytes: int


@dataclass(frozen=True)
class PairTerms:
    """What both sides of a pair agree on when it is made."""

    incarnation: int
    mac_key: bytes = field(repr=False)  # no log has it


class Pair:
    """One pair. Its future states are awaited with `wait_*`; only PeerBook moves it."""

    def __init__(self, peer_id: int, remote: Remote, incarnation: int, *, store: bool) -> None:
        self.peer_id = peer_id
        self.remote = remote
        self.incarnation = incarnation
        self.store = store
        self.transport = ""
        self.not_shared = ""  # why not; empty where it is
        self.staged = ""  # why; empty where it is not
        self.error: CrossdockError | None = None
        self._life = Lifecycle(PairState.CONNECTING, PAIR_TRANSITIONS)
        self._settled = asyncio.Event()  # READY or beyond
        self._broken = asyncio.Event()
        self._closed = asyncio.Event()

    def travel_by(self, event: native.PeerConnected | native.PeerReady) -> None:
        """How the bytes of the pair travel, as the transport has chosen."""
        self.transport = event.transport
        self.not_shared = event.not_shared
        self.staged = event.staged
        tell = _log.warning if self.staged else _log.info
        tell(
            "pair_ready",
            peer=self.remote.instance_id,
            transport=self.transport,
            not_shared=self.not_shared,
            staged=self.staged,
        )

    @property
    def state(self) -> PairState:
        return self._life.state

    @property
    def state_name(self) -> str:
        return _STATE_NAME[self._life.state]

    @property
    def ready(self) -> bool:
        return self._life.state is PairState.READY

    @property
    def usable(self) -> bool:
        """Ready, or about to be."""
        return self._life.state in (PairState.CONNECTING, PairState.READY)

    def advance(self, event: PairEvent, error: CrossdockError | None = None) -> bool:
        changed = self._life.advance(event)
        if error is not None and self.error is None:
            self.error = error
        if self.state is not PairState.CONNECTING:
            self._settled.set()
        if self.state in (PairState.BREAKING, PairState.CLOSED):
            self._broken.set()
        if self.state is PairState.CLOSED:
            self._closed.set()
        return changed

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns once handoffs may run. Raises why they cannot."""
        try:
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            raise unreachable(
                f"the engine of {self.remote.instance_id} did not answer within {timeout_s:g} s"
            ) from None
        if not self.ready:
            raise self.failure()

    async def wait_broken(self) -> None:
        await self._broken.wait()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def failure(self) -> CrossdockError:
        return self.error or unreachable(f"the pair with {self.remote.instance_id} was ended")


class PairTable(ABC):
    """The pairs of one side, at most one an instance. Used on one event loop."""

    def __init__(self) -> None:
        self._pairs: dict[int, Pair] = {}
        self._num_made = 0

    def __iter__(self) -> Iterator[Pair]:
        return iter(list(self._pairs.values()))

    @abstractmethod
    def disconnect(self, pair: Pair, error: CrossdockError) -> None:
        """Breaks a pair for `error`. Idempotent."""

    def with_instance(self, instance_id: str) -> Pair | None:
        """The pair with that instance, in whatever state short of CLOSED."""
        return next((pair for pair in self if pair.remote.instance_id == instance_id), None)

    async def wait_gone(
        self,
        instance_id: str,
        error: CrossdockError,
        timeout_s: float = limits.PAIR_CLOSED_MAX_S,
    ) -> None:
        """Breaks an old pair with that instance, and returns once there is none."""
        try:
            async with asyncio.timeout(timeout_s):
                while (pair := self.with_instance(instance_id)) is not None:
                    self.disconnect(pair, error)
                    await pair.wait_closed()
        except TimeoutError:
            raise unreachable(
                f"the former pair with {instance_id} is not closed yet after {timeout_s:g} s; "
                "try again"
            ) from None

    def _make(self, remote: Remote, terms: PairTerms, *, store: bool) -> Pair:
        """A pair that is not in the table yet."""
        assert self.with_instance(remote.instance_id) is None
        self._num_made += 1
        return Pair(self._num_made, remote, terms.incarnation, store=store)


class PeerBook(PairTable):
    """All pairs of one engine.

    `send` hands a command to the engine; it does not fail while the engine lives.
    """

    def __init__(self, send: Callable[[native.Command], None]) -> None:
        super().__init__()
        self._send = send
        self._former: deque[tuple[str, int]] = deque(maxlen=_FORMER_MAX)
        self._changed = asyncio.Event()
        self._failure: CrossdockError | None = None

    def connect(self, remote: Remote, terms: PairTerms, *, store: bool = False) -> Pair:
        """Makes a pair. The caller has seen to it that no other with this instance is left.
        Raises once the engine is gone.
        """
        if self._failure is not None:
            raise self._failure
        pair = self._make(remote, terms, store=store)
        self._pairs[pair.peer_id] = pair
        self._send(
            native.ConnectPeer(
                peer_id=pair.peer_id,
                epoch=remote.epoch,
                incarnation=terms.incarnation,
                mac_key=terms.mac_key,
                descriptor=remote.descriptor,
                layout=remote.layout,
                store=store,
            )
        )
        self._notify()
        return pair

    def disconnect(self, pair: Pair, error: CrossdockError) -> None:
        """See PairTable."""
        if pair.advance(PairEvent.BROKEN, error):
            self._send(native.DisconnectPeer(peer_id=pair.peer_id))
            self._notify()

    def on_event(self, event: native.PeerConnected | native.PeerDown) -> None:
        pair = self._pairs.get(event.peer_id)
        if pair is None:
            return
        match event:
            case native.PeerConnected():
                pair.travel_by(event)
                pair.advance(PairEvent.CONNECTED)
            case native.PeerDown():
                error = _down_error(pair, event)
                if event.closed:
                    self._close(pair, error)
                else:
                    self.disconnect(pair, error)
        self._notify()

    def fail_all(self, error: CrossdockError) -> None:
        """The engine is gone, and all of its operations with it."""
        self._failure = error
        for pair in self:
            self._close(pair, error)
        self._notify()

    async def ready_with(self, instance_id: str, epoch: int, timeout_s: float) -> Pair:
        """Waits for the pair with that engine, which the other side makes, to be ready. Raises
        STALE_EPOCH once it is known that another engine took the place of that one.
        """
        num_made_before = self._num_made
        try:
            async with asyncio.timeout(timeout_s):
                while self._failure is None:
                    pair = self.with_instance(instance_id)
                    if pair is not None and pair.remote.epoch == epoch and pair.ready:
                        return pair
                    if pair is not None and pair.usable and pair.remote.epoch != epoch:
                        # An engine that we have not met may be about to take this one's place.
                        was_met = (instance_id, epoch) in self._former
                        if was_met or pair.peer_id > num_made_before:
                            raise stale_epoch(
                                f"{instance_id} runs epoch {pair.remote.epoch:016x}, the request "
                                f"names {epoch:016x}: its engine has restarted"
                            )
                    self._changed.clear()
                    await self._changed.wait()
                raise self._failure
        except TimeoutError:
            raise unreachable(
                f"{instance_id} (epoch {epoch:016x}) did not connect within {timeout_s:g} s"
            ) from None

    def _close(self, pair: Pair, error: CrossdockError) -> None:
        pair.advance(PairEvent.CLOSED, error)
        self._pairs.pop(pair.peer_id, None)
        self._former.append((pair.remote.instance_id, pair.remote.epoch))

    def _notify(self) -> None:
        self._changed.set()


def _down_error(pair: Pair, event: native.PeerDown) -> CrossdockError:
    what = event.message or "connection ended"
    message = f"pair with {pair.remote.instance_id}: {what}"
    if event.code == Code.FAILED_PRECONDITION:
        return layout_mismatch(message)
    code = Code(event.code) if event.code else Code.UNAVAILABLE
    return CrossdockError(code, message, Reason.UNREACHABLE)
