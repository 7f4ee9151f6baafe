"""Health, reflection, draining and closing of streams on a real server."""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the service.

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from crossdock.api.v1 import decode_pb2, decode_pb2_grpc, kv_pb2
from crossdock.errors import CrossdockError, Reason
from crossdock.rpc.channel import open_channel
from crossdock.rpc.server import RpcServer
from crossdock.rpc.status import from_rpc_error

NAME = "crossdock.api.v1.Decode"


class SlowDecode(decode_pb2_grpc.DecodeServicer):
    """Streams one message, then waits to be told to end."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.closed = asyncio.Event()

    async def Generate(
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        try:
            yield decode_pb2.DecodeResponse()
            await self.finish.wait()
            yield decode_pb2.DecodeResponse(finish=decode_pb2.ENGINE_FINISH_STOP)
        finally:
            self.closed.set()

    async def GetStatus(
        self, request: kv_pb2.InstanceRequest, context: Any
    ) -> kv_pb2.InstanceStatus:
        return kv_pb2.InstanceStatus(role="decode")


async def _serve(servicer: SlowDecode) -> tuple[RpcServer, str]:
    server = RpcServer("decode-1", ungated=[f"/{NAME}/GetStatus"])
    server.add(NAME, lambda raw: decode_pb2_grpc.add_DecodeServicer_to_server(servicer, raw))
    port = await server.start("127.0.0.1", 0)
    return server, f"127.0.0.1:{port}"


async def test_calls_that_arrive_all_at_once_are_all_answered() -> None:
    """More than gRPC keeps for a server that is busy: it would cancel some of them."""
    server, address = await _serve(SlowDecode())
    async with open_channel(address) as channel:
        calls = [_health(channel, NAME) for _ in range(4_000)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    await server.stop()
    assert set(answers) == {health_pb2.HealthCheckResponse.NOT_SERVING}


async def _health(channel: grpc.aio.Channel, service: str) -> Any:
    reply: health_pb2.HealthCheckResponse = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service=service), timeout=240
    )
    return reply.status


async def test_health_follows_set_serving() -> None:
    server, address = await _serve(SlowDecode())
    async with open_channel(address) as channel:
        assert await _health(channel, NAME) == health_pb2.HealthCheckResponse.NOT_SERVING
        await server.set_serving(True)
        assert await _health(channel, NAME) == health_pb2.HealthCheckResponse.SERVING
        assert await _health(channel, "") == health_pb2.HealthCheckResponse.SERVING
    await server.stop()


async def test_reflection_lists_the_service() -> None:
    server, address = await _serve(SlowDecode())
    async with open_channel(address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=10
        )
        async for reply in call:
            names = [service.name for service in reply.list_services_response.service]
            break
    assert NAME in names
    await server.stop()


async def test_drain_finishes_running_calls_and_refuses_new_ones() -> None:
    servicer = SlowDecode()
    server, address = await _serve(servicer)
    await server.set_serving(True)
    async with open_channel(address) as channel:
        stub = decode_pb2_grpc.DecodeStub(channel)
        call = stub.Generate(decode_pb2.DecodeRequest(), timeout=30)
        await call.read()
        drained = asyncio.create_task(server.drain(timeout_s=20))
        await asyncio.sleep(0)  # the drain's first step closes the gate
        assert server.gate.draining
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Generate(decode_pb2.DecodeRequest(), timeout=10).read()
        assert from_rpc_error(raised.value).reason == Reason.DRAINING
        assert await _health(channel, NAME) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await stub.GetStatus(kv_pb2.InstanceRequest(), timeout=10)).role == "decode"
        servicer.finish.set()
        last = await call.read()
        assert isinstance(last, decode_pb2.DecodeResponse)
        assert last.finish == decode_pb2.ENGINE_FINISH_STOP
        assert await drained


async def test_drain_is_bounded() -> None:
    servicer = SlowDecode()
    server, address = await _serve(servicer)
    async with open_channel(address) as channel:
        call = decode_pb2_grpc.DecodeStub(channel).Generate(decode_pb2.DecodeRequest(), timeout=30)
        await call.read()
        assert not await server.drain(timeout_s=0.05)
        await asyncio.wait_for(servicer.closed.wait(), 10)


async def test_a_cancelled_stream_closes_the_servicers_generator() -> None:
    servicer = SlowDecode()
    server, address = await _serve(servicer)
    async with open_channel(address) as channel:
        call = decode_pb2_grpc.DecodeStub(channel).Generate(decode_pb2.DecodeRequest(), timeout=30)
        await call.read()
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), 10)
        assert await server.gate.wait_idle(10)
    await server.stop()


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = RpcServer("decode-1")
        with pytest.raises(CrossdockError, match=f"127.0.0.1:{port}.*in use"):
            await server.start("127.0.0.1", port)
        await server.stop()
