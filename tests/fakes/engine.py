"""An engine in Python, on the front's side of the link: what a test wants it to say, it says."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from crossdock import _native as native
from crossdock.engine.link import Link, Process

T = TypeVar("T")

VOCAB_SIZE = 1_000
CONTEXT_TOKENS = 512
NUM_BLOCKS = 8
QUARANTINED_BLOCKS_MAX = 2
STRIDE_BYTES = 4_096


def event(kind: type[T], **fields: Any) -> T:
    """An event as the native module would hand it out; Python cannot construct those."""

    class StandIn(SimpleNamespace):
        __class__ = property(lambda _self: kind)

    return cast(T, StandIn(**fields))


def ready(epoch: int, **changes: Any) -> native.Ready:
    fields: dict[str, Any] = {
        "epoch": epoch,
        "descriptor": b"descriptor-%d" % epoch,
        "layout": b"layout",
        "layout_text": "tiny, 32 tokens a block, f32",
        "numerics_id": "fake",
        "num_blocks": NUM_BLOCKS,
        "block_stride_bytes": STRIDE_BYTES,
        "context_tokens_max": CONTEXT_TOKENS,
        "vocab_size": VOCAB_SIZE,
        "eos_token_ids": [2],
    }
    return event(native.Ready, **(fields | changes))


def pair_ready(peer_id: int, transport: str, staged: str = "") -> native.PeerConnected:
    fields = {"transport": transport, "not_shared": "", "staged": staged}
    return event(native.PeerConnected, peer_id=peer_id, **fields)


def token(
    sequence_id: int,
    position: int,
    finish: native.Finish = native.Finish.NONE,
    value: int | None = None,
) -> native.SequenceToken:
    return event(
        native.SequenceToken,
        sequence_id=sequence_id,
        token=position if value is None else value,
        position=position,
        digest_low=position,
        digest_high=1,
        finish=finish,
    )


def tokens(*items: native.SequenceToken) -> native.Tokens:
    return event(native.Tokens, tokens=list(items))


def started(sequence_id: int, num_cached_tokens: int = 0) -> native.Started:
    return event(
        native.Started,
        sequence_id=sequence_id,
        num_cached_tokens=num_cached_tokens,
        queue_ns=2_000_000,
        prefill_ns=3_000_000,
    )


def ended(sequence_id: int, code: int, message: str = "") -> native.Ended:
    return event(native.Ended, sequence_id=sequence_id, code=code, message=message)


def handoff_done(sequence_id: int, position: int) -> native.HandoffDone:
    return event(
        native.HandoffDone,
        sequence_id=sequence_id,
        first_token=7,
        position=position,
        digest_low=11,
        digest_high=12,
        num_cached_tokens=32,
        queue_ns=1_000_000,
        prefill_ns=2_000_000,
        handoff_ns=3_000_000,
        handoff_bytes=4_096,
        num_transfers=2,
        transfer_ns=500_000,
    )


def peer_down(
    peer_id: int, *, closed: bool, code: int = 14, message: str = "gone"
) -> native.PeerDown:
    return event(native.PeerDown, peer_id=peer_id, closed=closed, code=code, message=message)


def status_report(num_quarantined: int = 0) -> native.StatusReport:
    return event(
        native.StatusReport,
        num_blocks=NUM_BLOCKS,
        num_free=5,
        num_owned=2,
        num_cached=1,
        num_quarantined=num_quarantined,
        quarantined_blocks_max=QUARANTINED_BLOCKS_MAX,
        num_running=1,
        num_waiting=3,
        num_handoffs=1,
        num_steps=42,
        queued_tokens=99,
        counters=[event(native.NamedCount, name="steps", value=42)],
        pairs=[
            event(
                native.PairReport,
                peer_id=1,
                counters=[event(native.NamedCount, name="num_blocks_read", value=7)],
            )
        ],
    )


class FakeEngine:
    """Implements Link and Process. Answers pairs, status and shutdown by itself unless told not
    to; `on_command` sees every command, after it was recorded.
    """

    def __init__(self, epoch: int, *, starts: bool = True, pairs: bool = True) -> None:
        self.epoch = epoch
        self.pid = 100_000 + epoch
        self.last_words = ""
        self.commands: list[native.Command] = []
        self.full = False
        self.counter = (0, False)
        self.answers_status = True
        self.num_quarantined = 0
        self.pairs = pairs
        self.on_command: Callable[[native.Command], None] | None = None
        self._events: list[native.Event] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if starts:
            self.emit(ready(epoch))

    @property
    def to_front_fd(self) -> int:
        return self._fd

    def send(self, command: native.Command) -> bool:
        if self.full:
            return False
        self.commands.append(command)
        self._answer(command)
        if self.on_command is not None:
            self.on_command(command)
        return True

    def receive(self) -> list[native.Event]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        events, self._events = self._events, []
        return events

    def progress(self) -> tuple[int, bool]:
        return self.counter

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def kill(self) -> None:
        self.exit(-9)

    def exit(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    def emit(self, *events: native.Event) -> None:
        self._events.extend(events)
        os.eventfd_write(self._fd, 1)

    def sent(self, kind: type[Any]) -> list[Any]:
        """The commands of that kind, oldest first."""
        return [command for command in self.commands if isinstance(command, kind)]

    async def next(self, kind: type[Any], count: int = 1) -> Any:
        """The count-th command of that kind, once it was sent."""
        async with asyncio.timeout(60):
            while len(self.sent(kind)) < count:  # noqa: ASYNC110 - a fake has no event to await
                await asyncio.sleep(0.001)
        return self.sent(kind)[count - 1]

    def close(self) -> None:
        os.close(self._fd)

    def _answer(self, command: native.Command) -> None:
        fields: Any = command
        match command:
            case native.ConnectPeer() if self.pairs:
                self.emit(pair_ready(fields.peer_id, "shm"))
            case native.DisconnectPeer() if self.pairs:
                self.emit(peer_down(fields.peer_id, closed=True))
            case native.QueryStatus() if self.answers_status:
                self.emit(status_report(self.num_quarantined))
            case native.Shutdown():
                self.exit(0)


class FakeLauncher:
    """Hands out engines that `make` constructs, each with the next number."""

    def __init__(self, make: Callable[[int], FakeEngine] = FakeEngine) -> None:
        self._make = make
        self.engines: list[FakeEngine] = []

    async def launch(self) -> tuple[Link, Process]:
        engine = self._make(len(self.engines) + 1)
        self.engines.append(engine)
        return engine, engine

    @property
    def last(self) -> FakeEngine:
        return self.engines[-1]
