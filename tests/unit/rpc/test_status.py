"""Errors keep their code, reason, field and retry delay across a real call."""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the service.

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from crossdock import errors
from crossdock.api.v1 import decode_pb2, decode_pb2_grpc, kv_pb2
from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc.channel import open_channel
from crossdock.rpc.server import RpcServer
from crossdock.rpc.status import from_rpc_error


class FailingDecode(decode_pb2_grpc.DecodeServicer):
    """Raises what it was given, before or after the first message of the stream."""

    def __init__(self, error: BaseException, messages_first: int = 0) -> None:
        self.error = error
        self.messages_first = messages_first

    async def Generate(
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncIterator[decode_pb2.DecodeResponse]:
        for _ in range(self.messages_first):
            yield decode_pb2.DecodeResponse()
        raise self.error

    async def GetStatus(
        self, request: kv_pb2.InstanceRequest, context: Any
    ) -> kv_pb2.InstanceStatus:
        raise self.error


async def _serve(servicer: FailingDecode) -> tuple[RpcServer, str]:
    server = RpcServer("decode-1")
    server.add(
        "crossdock.api.v1.Decode",
        lambda raw: decode_pb2_grpc.add_DecodeServicer_to_server(servicer, raw),
    )
    port = await server.start("127.0.0.1", 0)
    return server, f"127.0.0.1:{port}"


async def _error_of(servicer: FailingDecode) -> CrossdockError:
    server, address = await _serve(servicer)
    async with open_channel(address) as channel:
        stub = decode_pb2_grpc.DecodeStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    await server.stop()
    return from_rpc_error(raised.value)


CASES = [
    errors.invalid_argument("token_ids", "must not be empty"),
    errors.unsupported("n"),
    errors.already_live("request_id", "r-1"),
    errors.overloaded("no room", retry_after_s=2.5),
    errors.handoff_refused("decode instance is full"),
    errors.handoff_lost("prefill instance went away"),
    errors.draining("decode-1"),
    errors.stale_epoch("epoch differs"),
    errors.deadline_exceeded("too late"),
]


@pytest.mark.parametrize("error", CASES, ids=lambda error: error.reason)
def test_error_survives_a_call(error: CrossdockError) -> None:
    received = asyncio.run(_error_of(FailingDecode(error)))
    assert (received.code, received.reason, received.field, received.retry_after_s) == (
        error.code,
        error.reason,
        error.field,
        error.retry_after_s,
    )
    assert received.message == error.message


def test_error_in_mid_stream_follows_the_messages() -> None:
    async def body() -> CrossdockError:
        server, address = await _serve(FailingDecode(errors.handoff_lost("gone"), 2))
        async with open_channel(address) as channel:
            call = decode_pb2_grpc.DecodeStub(channel).Generate(
                decode_pb2.DecodeRequest(), timeout=10
            )
            assert await call.read() == decode_pb2.DecodeResponse()
            assert await call.read() == decode_pb2.DecodeResponse()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call.read()
        await server.stop()
        return from_rpc_error(raised.value)

    error = asyncio.run(body())
    assert error.reason == Reason.HANDOFF_LOST


def test_a_bug_leaves_as_internal_without_its_text() -> None:
    received = asyncio.run(_error_of(FailingDecode(KeyError("secret"))))
    assert received.code == Code.INTERNAL
    assert "secret" not in received.message


def test_an_unreachable_service_is_unavailable_with_a_reason() -> None:
    async def body() -> CrossdockError:
        server, address = await _serve(FailingDecode(RuntimeError()))
        await server.stop()
        async with open_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await decode_pb2_grpc.DecodeStub(channel).GetStatus(
                    kv_pb2.InstanceRequest(), timeout=10
                )
        return from_rpc_error(raised.value)

    error = asyncio.run(body())
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.UNREACHABLE)


def test_a_long_message_is_cut_and_still_parses() -> None:
    received = asyncio.run(_error_of(FailingDecode(errors.invalid_argument("stop", "é" * 9000))))
    assert received.field == "stop"
    assert received.message.endswith("...")


def test_every_code_has_an_http_status() -> None:
    assert set(errors.HTTP_STATUS) == set(Code)
