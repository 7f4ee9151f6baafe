"""The client's half of grpc.aio, over the simulated network: channels, calls, deadlines, cancels.

Generated stubs and the code above them cannot tell it from the real one, whose rules are: a call
that its caller cancels raises CancelledError; a status that the server sent comes after every
message, one that the client made itself comes at once; calls fail fast while a channel cannot
connect, and a channel tries again after a backoff when somebody calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import grpc
from grpc.aio import AioRpcError, Metadata

from crossdock.rpc import limits
from tests.sim.network import Connection, Listener, Network, Side
from tests.sim.rpc_server import ServerSide
from tests.sim.virtual_loop import Process, current_process

_CONNECT_MAX_S = 20.0
# Messages that a stream may have on the way or unread; the real bound is in bytes.
WINDOW_MESSAGES = 16
EOF: Final[Any] = grpc.aio.EOF  # type: ignore[attr-defined]


class Tap(Protocol):
    """Sees, and may change, what passes through a channel."""

    def request(self, method: str, request: Any) -> None: ...

    def response(self, method: str, request: Any, response: Any) -> None: ...


@dataclass(frozen=True)
class Status:
    """How a call ended. `made_here`: by the client itself, not by the server."""

    code: grpc.StatusCode
    details: str
    trailing: tuple[tuple[str, Any], ...] = ()
    made_here: bool = True


class Channel:
    """One connection at a time to one address. Used by the process that opened it."""

    def __init__(self, network: Network, address: str, tap: Tap | None = None) -> None:
        self.network = network
        self.process: Process = current_process()
        self._address = address
        self._tap = tap
        self._connection: Connection | None = None
        self._connecting = 0
        self._num_tries = 0
        self._waiting: list[ClientCall] = []
        self._calls: dict[int, ClientCall] = {}
        self._num_calls = 0
        self._backoff_s = 0.0
        self._retry_at_s = 0.0
        self._last_error = ""
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(None)

    async def close(self, grace: float | None = None) -> None:
        del grace
        self._closed = True
        for call in list(self._calls.values()):
            call.cancel()
        if self._connection is not None:
            self._connection.close(self._connection.client)
            self._connection = None

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., UnaryCall]:
        def invoke(request: Any, timeout: float | None = None) -> UnaryCall:
            raw = self._prepare(method, request, request_serializer)
            parse = self._parser(method, request, response_deserializer)
            return UnaryCall(self, method, raw, parse, timeout)

        return invoke

    def unary_stream(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[..., StreamCall]:
        def invoke(request: Any, timeout: float | None = None) -> StreamCall:
            raw = self._prepare(method, request, request_serializer)
            parse = self._parser(method, request, response_deserializer)
            return StreamCall(self, method, raw, parse, timeout)

        return invoke

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        raise NotImplementedError(f"{method}: nothing of crossdock streams requests")

    stream_unary = stream_stream

    @property
    def busy(self) -> bool:
        """See Side."""
        return bool(self._calls)

    def connection_lost(self, why: str) -> None:
        """See Side."""
        self._connection = None
        for call in list(self._calls.values()):
            if call not in self._waiting:
                call.end(Status(grpc.StatusCode.UNAVAILABLE, why))

    def start(self, call: ClientCall) -> int:
        """Sends it, now or once there is a connection; the number that `forget` takes."""
        if self._closed:
            raise grpc.aio.UsageError("Channel is closed.")
        self._num_calls += 1
        number = self._num_calls
        self._calls[number] = call
        if self._connection is not None:
            self._send(number, call)
        elif self._connecting:
            self._waiting.append(call)
        elif self.network.loop.time() < self._retry_at_s:
            self.network.loop.call_soon(call.end, self._unavailable())
        else:
            self._waiting.append(call)
            self._connect()
        return number

    def forget(self, number: int) -> None:
        call = self._calls.pop(number, None)
        if call in self._waiting:
            self._waiting.remove(call)

    def tell(self, number: int, what: str, *args: object) -> None:
        """A word to the server about a call: "cancel" or "credit"."""
        if self._connection is not None:
            side = self._connection.server.side
            assert isinstance(side, ServerSide)
            self._connection.to_server(getattr(side, what), number, *args)

    def on_message(self, number: int, raw: bytes) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.on_message(raw)

    def on_status(self, number: int, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.end(Status(code, details, tuple(trailing or ()), made_here=False))

    def _prepare(self, method: str, request: Any, serialize: Any) -> bytes:
        if self._tap is not None:
            self._tap.request(method, request)
        raw: bytes = serialize(request)
        return raw

    def _parser(self, method: str, request: Any, parse: Any) -> Callable[[bytes], Any]:
        def parse_and_tap(raw: bytes) -> Any:
            response = parse(raw)
            if self._tap is not None:
                self._tap.response(method, request, response)
            return response

        return parse_and_tap

    def _send(self, number: int, call: ClientCall) -> None:
        assert self._connection is not None
        side = self._connection.server.side
        assert isinstance(side, ServerSide)
        self._connection.to_server(side.start, number, call.method, call.raw, call.left_s())

    def _unavailable(self) -> Status:
        text = f"failed to connect to all addresses; last error: {self._last_error}"
        return Status(grpc.StatusCode.UNAVAILABLE, text)

    def _connect(self) -> None:
        self._num_tries += 1
        self._connecting = self._num_tries
        now_s = self.network.loop.time()
        self.process.call_at(now_s + self.network.delay_s(), self._syn, self._connecting)
        self.process.call_at(now_s + _CONNECT_MAX_S, self._fail, self._connecting, "timed out")

    def _syn(self, number: int) -> None:
        host = self.network.host_of(self._address)
        if not self.network.reaches(self.process.host, host):
            return  # lost; the timer tells
        at_s = self.network.loop.time() + self.network.delay_s()
        listener = self.network.listener(self._address)
        if listener is None:
            self.process.call_at(at_s, self._fail, number, "Connection refused")
        else:
            # A process that is stopped accepts in its kernel, and greets once it goes on.
            listener.process.call_at(at_s, self._greet, number, listener)

    def _greet(self, number: int, listener: Listener) -> None:
        if self.process.alive and self.network.listener(self._address) is listener:
            connection = self.network.connect(self.process, self, listener)
            connection.to_client(self._connected, number, connection)

    def _connected(self, number: int, connection: Connection) -> None:
        if number != self._connecting or self._closed:
            connection.close(connection.client)
            return
        self._connecting = 0
        self._backoff_s = 0.0
        self._connection = connection
        waiting, self._waiting = self._waiting, []
        for key, call in list(self._calls.items()):
            if call in waiting:
                self._send(key, call)

    def _fail(self, number: int, why: str) -> None:
        if number != self._connecting:
            return
        self._connecting = 0
        self._last_error = why
        self._backoff_s = min(
            max(1.6 * self._backoff_s, limits.RECONNECT_BACKOFF_MIN_MS / 1e3),
            limits.RECONNECT_BACKOFF_MAX_MS / 1e3,
        )
        jitter = self.network.random.uniform(0.8, 1.2)
        self._retry_at_s = self.network.loop.time() + jitter * self._backoff_s
        for call in list(self._waiting):
            call.end(self._unavailable())


_CHANNEL_IS_A_SIDE: type[Side] = Channel


class ClientCall:
    """What unary and streaming calls share."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        raw: bytes,
        parse: Callable[[bytes], Any],
        timeout_s: float | None,
    ) -> None:
        self.method = method
        self.raw = raw
        self._channel = channel
        self._parse = parse
        self._messages: deque[bytes] = deque()
        self._final: Status | None = None  # waits for the messages before it
        self._status: Status | None = None
        self._news = asyncio.Event()
        self._num_unread = 0
        self._callbacks: list[Callable[[Any], object]] = []
        loop = channel.network.loop
        self._deadline_s = None if timeout_s is None else loop.time() + timeout_s
        self._timer = None
        if timeout_s is not None:
            self._timer = loop.call_at(loop.time() + timeout_s, self._too_late)
        self._number = channel.start(self)

    def left_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._channel.network.loop.time())

    def done(self) -> bool:
        return self._status is not None

    def cancelled(self) -> bool:
        return self._status is not None and self._status.code is grpc.StatusCode.CANCELLED

    def cancel(self) -> bool:
        if self._status is not None:
            return False
        self._channel.tell(self._number, "cancel")
        self._locally(Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!"))
        return True

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        while self._status is None:
            self._news.clear()
            await self._news.wait()
        return self._status.code

    def on_message(self, raw: bytes) -> None:
        self._messages.append(raw)
        self._news.set()

    def end(self, status: Status) -> None:
        """From the channel. The first end counts."""
        if self._status is not None or self._final is not None:
            return
        if status.made_here:
            self._locally(status)
            return
        self._final = status
        self._settle()
        self._news.set()

    def _locally(self, status: Status) -> None:
        self._messages.clear()
        self._final = status
        self._settle()
        self._news.set()

    def _settle(self) -> None:
        if self._final is None or self._messages or self._status is not None:
            return
        self._status = self._final
        if self._timer is not None:
            self._timer.cancel()
        self._channel.forget(self._number)
        for callback in self._callbacks:
            callback(self)

    def _too_late(self) -> None:
        if self._status is None:
            self._channel.tell(self._number, "cancel")
            self._locally(Status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _raise_for_status(self) -> None:
        status = self._status
        assert status is not None
        if status.code is grpc.StatusCode.CANCELLED and status.made_here:
            raise asyncio.CancelledError
        if status.code is not grpc.StatusCode.OK:
            trailing = Metadata(*status.trailing)
            raise AioRpcError(status.code, Metadata(), trailing, status.details, None)

    async def _next(self) -> bytes | None:
        """The next message, or nothing at the end."""
        try:
            while not self._messages:
                if self._status is not None:
                    return None
                self._news.clear()
                await self._news.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        raw = self._messages.popleft()
        self._num_unread += 1
        if self._num_unread >= WINDOW_MESSAGES // 2:
            self._channel.tell(self._number, "credit", self._num_unread)
            self._num_unread = 0
        self._settle()
        return raw


class UnaryCall(ClientCall):
    """Awaited for its response."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._response().__await__()

    async def _response(self) -> Any:
        raw = await self._next()
        try:
            await self.code()
        except asyncio.CancelledError:
            self.cancel()
            raise
        self._raise_for_status()
        assert raw is not None, "OK without a response"
        return self._parse(raw)


class StreamCall(ClientCall):
    """Read one by one, or iterated over."""

    async def read(self) -> Any:
        if self.done():
            self._raise_for_status()
            return EOF
        raw = await self._next()
        if raw is None:
            self._raise_for_status()
            return EOF
        return self._parse(raw)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (raw := await self._next()) is not None:
            yield self._parse(raw)
        self._raise_for_status()
