"""The server's half of grpc.aio, over the simulated network: what RpcServer stands on.

The real interceptor, gate, health and servicers run on it. As in the real one, a call whose caller
went away, or whose deadline passed, has its task cancelled, and writing to it fails.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from tests.sim.network import Connection, Network, Side
from tests.sim.virtual_loop import Process, current_process


@dataclass(frozen=True)
class CallDetails:
    """What interceptors and handlers are asked with."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class Server:
    """Stands in for grpc.aio.Server. Lives in the process that made it."""

    def __init__(
        self, network: Network, window: int, interceptors: Sequence[Any] = (), options: Any = None
    ) -> None:
        del options
        self.network = network
        self.window = window
        self.process: Process = current_process()
        self._interceptors = interceptors
        self._handlers: list[Any] = []
        self._addresses: list[str] = []
        self._sides: list[ServerSide] = []
        self._idle = asyncio.Event()
        self.stopping = False

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """The same handlers come as generic ones, too."""

    def add_insecure_port(self, address: str) -> int:
        if not self.network.listen(address, self):
            return 0
        self._addresses.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        """Nothing more: a bound port listens."""

    async def stop(self, grace: float | None) -> None:
        """No new calls; running ones have `grace` seconds, then they are cancelled."""
        self.stopping = True
        try:
            async with asyncio.timeout(grace or 0.0):
                while any(side.busy for side in self._sides):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            for side in self._sides:
                side.cancel_all()
        for address in self._addresses:
            self.network.close_port(address, self)
        for side in list(self._sides):
            side.close()
        self._sides.clear()

    def accept(self, connection: Connection) -> ServerSide:
        """See network.Listener."""
        side = ServerSide(self, connection)
        self._sides.append(side)
        return side

    def forget(self, side: ServerSide) -> None:
        if side in self._sides:
            self._sides.remove(side)
        self.call_ended()

    def call_ended(self) -> None:
        self._idle.set()

    async def handler(self, method: str) -> Any:
        """Through the interceptors, the first of them outermost."""
        details: Any = CallDetails(method)

        async def find(asked: Any) -> Any:
            return next((h for g in self._handlers if (h := g.service(asked)) is not None), None)

        continuation: Callable[[Any], Any] = find
        for interceptor in reversed(self._interceptors):
            continuation = _intercepted(interceptor, continuation)
        return await continuation(details)


def _intercepted(interceptor: Any, inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda details: interceptor.intercept_service(inner, details)


class ServerSide:
    """The server's end of one connection."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._calls: dict[int, ServerCall] = {}

    @property
    def busy(self) -> bool:
        """See network.Side."""
        return bool(self._calls)

    def connection_lost(self, why: str) -> None:
        """See network.Side."""
        del why
        for call in list(self._calls.values()):
            call.caller_gone()
        self._server.forget(self)

    def start(self, number: int, method: str, raw: bytes, timeout_s: float | None) -> None:
        call = ServerCall(self._server, self, number, method, timeout_s)
        if self._server.stopping:
            call.finish(grpc.StatusCode.UNAVAILABLE, "server is shutting down")
            return
        self._calls[number] = call
        call.run(raw)

    def cancel(self, number: int) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.caller_gone()

    def credit(self, number: int, count: int) -> None:
        call = self._calls.get(number)
        if call is not None:
            call.on_credit(count)

    def send(self, what: str, *args: object) -> None:
        client: Any = self._connection.client.side
        self._connection.to_client(getattr(client, what), *args)

    def ended(self, number: int) -> None:
        self._calls.pop(number, None)
        self._server.call_ended()

    def cancel_all(self) -> None:
        for call in list(self._calls.values()):
            call.finish(grpc.StatusCode.UNAVAILABLE, "Cancelling all calls")
            call.caller_gone()

    def close(self) -> None:
        self._connection.close(self._connection.server)


_SERVER_SIDE_IS_A_SIDE: type[Side] = ServerSide


class ServerCall:
    """One call, and the ServicerContext that its handler sees."""

    def __init__(
        self, server: Server, side: ServerSide, number: int, method: str, timeout_s: float | None
    ) -> None:
        self._server = server
        self._side = side
        self._number = number
        self._method = method
        self._loop = server.network.loop
        self._deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._timer = None
        if timeout_s is not None:
            self._timer = self._loop.call_at(self._loop.time() + timeout_s, self.caller_gone)
        self._gone = False
        self._status_sent = False
        self._num_unread = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def run(self, raw: bytes) -> None:
        self._task = self._server.process.spawn(self._handle(raw))
        self._task.add_done_callback(self._over)

    def caller_gone(self) -> None:
        """Cancelled, disconnected or too late."""
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    def on_credit(self, count: int) -> None:
        self._num_unread -= count
        self._room.set()

    def finish(self, code: grpc.StatusCode, details: str, trailing: Any = ()) -> None:
        if not self._status_sent and not self._gone:
            self._status_sent = True
            self._side.send("on_status", self._number, code, details, trailing)

    # What servicers, health and the interceptor ask of a context.

    def time_remaining(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._loop.time())

    def cancelled(self) -> bool:
        return self._gone

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> NoReturn:
        if self._status_sent:
            raise grpc.aio.UsageError("Abort already called!")
        self.finish(code, details, trailing)
        raise grpc.aio.AbortError

    async def write(self, message: Any) -> None:
        while self._num_unread >= self._server.window and not self._gone:
            self._room.clear()
            await self._room.wait()
        if self._gone or self._status_sent:
            raise asyncio.InvalidStateError("the call is over")
        self._num_unread += 1
        self._side.send("on_message", self._number, self._serialize(message))

    async def _handle(self, raw: bytes) -> None:
        try:
            handler = await self._server.handler(self._method)
            if handler is None:
                self.finish(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
                return
            self._serialize = handler.response_serializer
            request = handler.request_deserializer(raw)
            if handler.unary_unary is not None:
                await self.write(await handler.unary_unary(request, self))
            elif inspect.isasyncgenfunction(handler.unary_stream):
                async for response in handler.unary_stream(request, self):
                    await self.write(response)
            else:
                await handler.unary_stream(request, self)
            self.finish(grpc.StatusCode.OK, "")
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self.finish(grpc.StatusCode.CANCELLED, "the handler was cancelled")
            raise

    def _over(self, task: asyncio.Task[None]) -> None:
        # Not in `_handle`: a task that is cancelled before its first step never gets there.
        del task
        if self._timer is not None:
            self._timer.cancel()
        self._side.ended(self._number)
