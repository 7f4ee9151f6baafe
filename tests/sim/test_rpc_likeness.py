"""The simulated gRPC does as the real one: each test runs the same code over both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Self

import grpc
import pytest
from grpc.aio import AioRpcError

from crossdock.api.v1 import decode_pb2, decode_pb2_grpc, kv_pb2
from crossdock.errors import overloaded
from crossdock.rpc.server import RpcServer
from crossdock.rpc.status import from_rpc_error
from crossdock.rpc.surroundings import REAL, Surroundings
from tests.sim.bare_world import BareWorld
from tests.sim.rpc_client import EOF

NAME = decode_pb2.DESCRIPTOR.services_by_name["Decode"].full_name
# ruff: noqa: ARG002, N802 - the names and parameters are those of the service.

# Generous for the real one on a loaded machine.
_LONG_S = 60.0


class Servicer(decode_pb2_grpc.DecodeServicer):
    """Does what the request's id says."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.num_sent = 0

    async def Generate(
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        self.begun.set()
        try:
            for _ in range(request.attempt):
                yield decode_pb2.DecodeResponse(tokens=[decode_pb2.GeneratedToken(token_id=7)])
                self.num_sent += 1
            match request.request_id:
                case "refuse":
                    raise overloaded("no room")
                case "bug":
                    raise ValueError("a bug")
                case "hang":
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def GetStatus(
        self, request: kv_pb2.InstanceRequest, context: Any
    ) -> kv_pb2.InstanceStatus:
        return kv_pb2.InstanceStatus(instance_id=f"{context.time_remaining() is not None}")


class Fixture:
    """A server, and a stub to it."""

    def __init__(self, surroundings: Surroundings, port: int, host: str) -> None:
        self._surroundings = surroundings
        self._port = port
        self._host = host

    async def __aenter__(self) -> Self:
        self.servicer = Servicer()
        self.server = RpcServer("decode-1", surroundings=self._surroundings)
        self.server.add(
            NAME, lambda server: decode_pb2_grpc.add_DecodeServicer_to_server(self.servicer, server)
        )
        bound = await self.server.start(self._host, self._port)
        self.address = f"{self._host}:{bound}"
        self.channel = self._surroundings.open_channel(self.address)
        self.stub = decode_pb2_grpc.DecodeStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)
        await self.server.stop()

    def generate(self, what: str, count: int = 0, timeout: float | None = None) -> Any:
        request = decode_pb2.DecodeRequest(request_id=what, attempt=count)
        return self.stub.Generate(request, timeout=timeout)


Test = Callable[[Fixture], Awaitable[None]]


@pytest.fixture(params=["real", "simulated"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    def run_it(test: Test) -> None:
        async def whole(surroundings: Surroundings, port: int, host: str) -> None:
            async with Fixture(surroundings, port, host) as fixture, asyncio.timeout(_LONG_S):
                await test(fixture)

        if request.param == "real":
            asyncio.run(whole(REAL, 0, "127.0.0.1"))
            return
        world = BareWorld()

        def main() -> Coroutine[Any, Any, None]:
            return world.process("both", "here").spawn(whole(world.surroundings(), 1, "here"))  # type: ignore[return-value]

        world.run(main)

    return run_it


async def _messages(call: Any) -> int:
    return len([message async for message in call])


def test_a_stream_brings_its_messages_then_its_end(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        assert await _messages(fixture.generate("", 100)) == 100
        call = fixture.generate("", 1)
        assert await call.read() != EOF
        assert await call.read() == EOF
        assert await call.read() == EOF
        assert await call.code() is grpc.StatusCode.OK

    run(test)


def test_an_error_comes_after_the_messages_with_its_details(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        call = fixture.generate("refuse", 3)
        for _ in range(3):
            assert await call.read() != EOF
        with pytest.raises(AioRpcError) as caught:
            await call.read()
        error = from_rpc_error(caught.value)
        assert (error.reason, error.retry_after_s) == ("OVERLOADED", 1.0)
        with pytest.raises(AioRpcError) as bug:
            await _messages(fixture.generate("bug"))
        assert bug.value.code() is grpc.StatusCode.INTERNAL

    run(test)


def test_a_cancelled_call_raises_here_and_is_cancelled_there(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        call = fixture.generate("hang", 1)
        assert await call.read() != EOF
        assert call.cancel()
        assert not call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        assert await call.code() is grpc.StatusCode.CANCELLED
        await fixture.servicer.cancelled.wait()

    run(test)


def test_a_cancelled_reader_cancels_its_call(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        call = fixture.generate("hang")
        reading = asyncio.create_task(call.read())
        await fixture.servicer.begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert call.cancelled()
        await fixture.servicer.cancelled.wait()

    run(test)


def test_a_deadline_ends_both_sides(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        while not fixture.servicer.begun.is_set():  # On a busy machine it may not come so far.
            with pytest.raises(AioRpcError) as caught:
                await _messages(fixture.generate("hang", 1, timeout=0.3))
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await fixture.servicer.cancelled.wait()
        status = await fixture.stub.GetStatus(kv_pb2.InstanceRequest(), timeout=5)
        assert status.instance_id == "True"
        assert (await fixture.stub.GetStatus(kv_pb2.InstanceRequest())).instance_id == "False"

    run(test)


def test_a_closed_channel_cancels_what_runs(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        call = fixture.generate("hang", 1)
        assert await call.read() != EOF
        await fixture.channel.close(None)
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        await fixture.servicer.cancelled.wait()

    run(test)


def test_a_server_that_stops_ends_its_calls(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        call = fixture.generate("hang", 1)
        assert await call.read() != EOF
        stopping = asyncio.create_task(fixture.server.stop())
        with pytest.raises(AioRpcError) as caught:
            await call.read()
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await stopping
        assert fixture.servicer.cancelled.is_set()
        with pytest.raises(AioRpcError) as refused:
            await fixture.stub.GetStatus(kv_pb2.InstanceRequest())
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    run(test)


def test_a_draining_server_says_so(run: Callable[[Test], None]) -> None:
    async def test(fixture: Fixture) -> None:
        call = fixture.generate("hang", 1)
        assert await call.read() != EOF
        draining = asyncio.create_task(fixture.server.drain(2.0))
        await asyncio.sleep(0)
        with pytest.raises(AioRpcError) as refused:
            await fixture.stub.GetStatus(kv_pb2.InstanceRequest())
        assert from_rpc_error(refused.value).reason == "DRAINING"
        assert not await draining

    run(test)
