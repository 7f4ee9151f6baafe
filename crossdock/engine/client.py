"""One engine life as a front sees it: commands in, events out, until the process ends.

Theory of operation. The link is two rings. The event loop watches the ring's eventfd, receives
what is there and hands every event to who waits for it: a sequence, the peer book, the store
adapter, a status query. Commands go straight into the ring; when it is full they queue here, in
order, and are tried again by timer, since the engine does not announce room. The queue is bounded
for new requests; commands that end something always fit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import structlog

from crossdock import _native as native
from crossdock.engine.link import Link, Process
from crossdock.engine.peers import PeerBook
from crossdock.engine.sequence import EngineSequence
from crossdock.errors import (
    Code,
    CrossdockError,
    Reason,
    deadline_exceeded,
    engine_restarted,
    invalid_argument,
    overloaded,
)

_log = structlog.get_logger("crossdock.engine")

StoreEvent: TypeAlias = (
    native.StoreLookup | native.StoreReadDone | native.StoreOffer | native.StoreWritten
)

# The ring holds thousands of commands; a queue behind it means that the engine does not read.
_QUEUED_COMMANDS_MAX: Final = 1_024
_RETRY_S: Final = 0.002
_SHUTDOWN_S: Final = 5.0


class EngineStartError(CrossdockError):
    """The engine could not start: its message says what is wrong with the set-up."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(code, message, Reason.NOT_READY)


class Engine:
    """A running engine. Used on one event loop.

    `ready` is set once `wait_ready` returned. After the process ended (`wait_down`) every
    sequence has failed and every pair is closed.
    """

    ready: native.Ready

    def __init__(self, link: Link, process: Process) -> None:
        self._link = link
        self._process = process
        self._pending: deque[tuple[native.Command, EngineSequence | None]] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._sequences: dict[int, EngineSequence] = {}
        self._num_sequences = 0
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[native.Ready] = self._loop.create_future()
        self._status: asyncio.Future[native.StatusReport] | None = None
        self._down = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.last_report: native.StatusReport | None = None
        self.peers = PeerBook(self.send)
        self.on_store_event: Callable[[StoreEvent], None] = _ignore_store_event
        self._loop.add_reader(link.to_front_fd, self._receive)
        self._watch = asyncio.create_task(self._watch_process())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def epoch(self) -> int:
        return self.ready.epoch

    @property
    def down(self) -> bool:
        return self._down.is_set()

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    async def wait_ready(self, timeout_s: float) -> None:
        """Returns once the engine serves. Raises EngineStartError, and then the process ends."""
        try:
            async with asyncio.timeout(timeout_s):
                self.ready = await asyncio.shield(self._started)
        except TimeoutError:
            self.kill()
            raise EngineStartError(
                Code.UNAVAILABLE, f"the engine did not start within {timeout_s:g} s"
            ) from None

    async def wait_down(self) -> None:
        await self._down.wait()

    async def wait_idle(self) -> None:
        """Returns once it has no sequence, or is down and has failed them all."""
        await self._idle.wait()

    def open(
        self, build: Callable[[int], native.Command], *, local: bool = False
    ) -> EngineSequence:
        """Starts a sequence with the command that `build` makes of its id."""
        if self.down:
            raise engine_restarted("the engine is restarting; try again")
        if len(self._pending) >= _QUEUED_COMMANDS_MAX:
            raise overloaded("the engine does not keep up with its commands")
        self._num_sequences += 1
        sequence = EngineSequence(self._num_sequences, local=local)
        command = build(sequence.sequence_id)
        self._sequences[sequence.sequence_id] = sequence
        self._idle.clear()
        self._post(command, sequence)
        return sequence

    def close(self, sequence: EngineSequence) -> None:
        """Ends the front's interest; a sequence that is not over is cancelled. Idempotent."""
        if self._sequences.pop(sequence.sequence_id, None) is None:
            return
        if not self._sequences:
            self._idle.set()
        if not sequence.over and not self.down:
            self.send(native.Cancel(sequence_id=sequence.sequence_id))

    def send(self, command: native.Command) -> None:
        """Commands reach the engine in the order of the calls. Dropped once the engine is down."""
        self._post(command, None)

    async def status(self, timeout_s: float) -> native.StatusReport:
        """The engine's account of itself. Callers at the same time share one query."""
        if self.down:
            raise engine_restarted("the engine is restarting; try again")
        question = self._ask()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(question)
        except TimeoutError:
            raise deadline_exceeded(
                f"the engine did not report its status within {timeout_s:g} s"
            ) from None

    def answers(self) -> bool:
        """Whether it has reported its status since it was last asked. Asks it again, if so."""
        if self._status is not None and not self._status.done():
            return False
        self._ask()
        return True

    def _ask(self) -> asyncio.Future[native.StatusReport]:
        if self._status is None or self._status.done():
            self._status = self._loop.create_future()
            self.send(native.QueryStatus())
        return self._status

    def quarantine_is_full(self) -> bool:
        """Whether, by its last report, more is in quarantine than it may hold there."""
        report = self.last_report
        return report is not None and report.num_quarantined > report.quarantined_blocks_max

    def progress(self) -> tuple[int, bool]:
        return self._link.progress()

    def kill(self) -> None:
        self._process.kill()

    async def shut_down(self) -> None:
        """Asks the engine to end, and sees to it that it does."""
        self.send(native.Shutdown())
        try:
            async with asyncio.timeout(_SHUTDOWN_S):
                await self.wait_down()
        except TimeoutError:
            self.kill()
            await self.wait_down()

    def _post(self, command: native.Command, sequence: EngineSequence | None) -> None:
        if self.down:
            return
        if self._pending or not self._try(command, sequence):
            self._pending.append((command, sequence))
            if self._retry is None:
                self._retry = self._loop.call_later(_RETRY_S, self._send_pending)

    def _try(self, command: native.Command, sequence: EngineSequence | None) -> bool:
        """Whether no other try is needed: it is in the ring, or can never be."""
        try:
            return self._link.send(command)
        except ValueError as error:
            text = f"the request does not fit into a message to the engine: {error}"
            if sequence is not None:
                sequence.fail(invalid_argument("token_ids", text))
            else:
                _log.error("engine_command_too_large", kind=type(command).__name__)
            return True

    def _send_pending(self) -> None:
        self._retry = None
        while self._pending:
            if not self._try(*self._pending[0]):
                self._retry = self._loop.call_later(_RETRY_S, self._send_pending)
                return
            self._pending.popleft()

    def _receive(self) -> None:
        try:
            events = self._link.receive()
        except RuntimeError as error:  # what it wrote does not parse: it cannot be trusted further
            _log.error("engine_link_broken", pid=self.pid, error=str(error))
            self.kill()
            return
        for event in events:
            self._dispatch(event)

    def _dispatch(self, event: native.Event) -> None:
        match event:
            case native.Tokens():
                for token in event.tokens:
                    self._push(token)
            case native.Started() | native.HandoffDone():
                self._push(event)
            case native.Ended():
                sequence = self._sequences.get(event.sequence_id)
                if sequence is not None:
                    sequence.end(event)
            case native.PeerConnected() | native.PeerDown():
                self.peers.on_event(event)
            case native.StatusReport():
                self.last_report = event
                if self._status is not None and not self._status.done():
                    self._status.set_result(event)
            case native.Ready():
                if not self._started.done():
                    self._started.set_result(event)
            case native.StartFailed():
                self._fail_start(EngineStartError(Code(event.code or 13), event.message))
            case _:
                self.on_store_event(event)

    def _push(self, event: native.SequenceToken | native.Started | native.HandoffDone) -> None:
        # Events of a sequence that was closed meanwhile are of no interest.
        sequence = self._sequences.get(event.sequence_id)
        if sequence is not None and not sequence.over:
            sequence.push(event)

    def _fail_start(self, error: EngineStartError) -> None:
        if not self._started.done():
            self._started.set_exception(error)
            self._started.exception()  # retrieved: nobody may be waiting

    async def _watch_process(self) -> None:
        code = await self._process.wait()
        self._receive()  # what it said before it ended
        self._loop.remove_reader(self._link.to_front_fd)
        if self._retry is not None:
            self._retry.cancel()
        self._down.set()
        self._idle.set()
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        words = self._process.last_words or "it said nothing"
        message = (
            f"the engine ended with {what}: {words}; run `crossdock doctor` to see what this "
            "machine lacks"
        )
        self._fail_start(EngineStartError(Code.UNAVAILABLE, message))
        error = engine_restarted(f"the engine ended ({what}) and is restarted; try again")
        if self._status is not None and not self._status.done():
            self._status.set_exception(error)
            self._status.exception()
        for sequence in list(self._sequences.values()):
            if not sequence.over:
                sequence.fail(error)
        self.peers.fail_all(error)
        _log.info("engine_ended", pid=self.pid, exit_code=code)


def _ignore_store_event(event: StoreEvent) -> None:
    _log.error("store_event_without_store", kind=type(event).__name__)
