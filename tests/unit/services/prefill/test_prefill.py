"""Prefill.Prefill and Prefill.Connect over gRPC, before engines in Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from crossdock import _native as native
from crossdock.api.v1 import decode_pb2, kv_pb2
from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc.status import from_rpc_error
from tests.fakes.engine import FakeEngine, FakeLauncher, ended, handoff_done, peer_down
from tests.fakes.fleet import Instance, epochs, prefill_instance
from tests.fakes.requests import HANDOFF_ID, prefill_request


@pytest.fixture
async def prefill() -> AsyncIterator[Instance]:
    async with prefill_instance(epochs(11, 12, 13)) as instance:
        yield instance


def _connect_request(epoch: int = 1, **changes: Any) -> kv_pb2.ConnectRequest:
    fields: dict[str, Any] = {
        "endpoint": kv_pb2.EngineEndpoint(
            instance_id="decode-1", epoch=epoch, descriptor=b"d", layout=b"l"
        ),
        "incarnation": 77,
        "mac_key": b"k" * 32,
    }
    return kv_pb2.ConnectRequest(**(fields | changes))


async def _error_of(awaitable: Any) -> CrossdockError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await awaitable
    return from_rpc_error(raised.value)


async def test_a_handoff_is_reported_once_it_is_acknowledged(prefill: Instance) -> None:
    pair: Any = prefill.prefill.Connect(_connect_request(), timeout=20)
    answer: Any = await pair.read()
    assert (answer.endpoint.instance_id, answer.endpoint.epoch) == ("prefill-1", 11)
    assert answer.endpoint.block_stride_bytes == 4_096
    call = prefill.prefill.Prefill(prefill_request(return_logit_digests=True), timeout=10)
    command = await prefill.engine.next(native.Prefill)
    assert command.peer_id == (await prefill.engine.next(native.ConnectPeer)).peer_id
    assert command.handoff_high == int.from_bytes(HANDOFF_ID[:8], "big")
    assert (command.task.tenant_salt, command.task.wants_digests) == (b"", True)
    prefill.engine.emit(handoff_done(command.task.sequence_id, 3))
    reply = await call
    assert (reply.first_token.token_id, reply.first_token.position) == (7, 3)
    assert reply.first_token.logit_digest == (11).to_bytes(8, "little") + (12).to_bytes(8, "little")
    assert (reply.queue_ms, reply.prefill_ms, reply.handoff_ms) == (1.0, 2.0, 3.0)
    assert (reply.handoff_bytes, reply.handoff_transfers, reply.handoff_transfer_ms) == (
        4_096,
        2,
        0.5,
    )
    assert (reply.transport, reply.cached_prompt_tokens) == ("shm", 32)
    assert not prefill.engine.sent(native.Cancel)
    pair.cancel()


async def test_a_request_may_precede_its_pair(prefill: Instance) -> None:
    call = prefill.prefill.Prefill(prefill_request(), timeout=10)
    await asyncio.sleep(0.05)
    assert not prefill.engine.sent(native.Prefill)
    pair = prefill.prefill.Connect(_connect_request(), timeout=20)
    command = await prefill.engine.next(native.Prefill)
    prefill.engine.emit(handoff_done(command.task.sequence_id, 3))
    assert (await call).first_token.token_id == 7
    pair.cancel()


async def test_a_cancelled_request_is_cancelled_in_the_engine(prefill: Instance) -> None:
    pair = prefill.prefill.Connect(_connect_request(), timeout=20)
    call = prefill.prefill.Prefill(prefill_request(), timeout=10)
    command = await prefill.engine.next(native.Prefill)
    call.cancel()
    cancel = await prefill.engine.next(native.Cancel)
    assert cancel.sequence_id == command.task.sequence_id
    pair.cancel()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.UNAVAILABLE, Reason.HANDOFF_LOST),
        (Code.RESOURCE_EXHAUSTED, Reason.HANDOFF_REFUSED),
    ],
)
async def test_a_handoff_that_fails_says_how(prefill: Instance, code: Code, reason: Reason) -> None:
    pair = prefill.prefill.Connect(_connect_request(), timeout=20)
    call = prefill.prefill.Prefill(prefill_request(), timeout=10)
    number = (await prefill.engine.next(native.Prefill)).task.sequence_id
    prefill.engine.emit(ended(number, code, "told why"))
    error = await _error_of(call)
    assert (error.code, error.reason, error.message) == (code, reason, "told why")
    pair.cancel()


async def test_a_dead_engine_fails_requests_and_pairs_at_once(prefill: Instance) -> None:
    pair: Any = prefill.prefill.Connect(_connect_request(), timeout=20)
    call = prefill.prefill.Prefill(prefill_request(), timeout=10)
    await prefill.engine.next(native.Prefill)
    await pair.read()
    prefill.engine.kill()
    assert (await _error_of(call)).reason == Reason.ENGINE_RESTARTED
    assert (await _error_of(pair.read())).reason == Reason.ENGINE_RESTARTED


async def test_the_engine_may_break_a_pair(prefill: Instance) -> None:
    pair: Any = prefill.prefill.Connect(_connect_request(), timeout=20)
    await pair.read()
    peer_id = (await prefill.engine.next(native.ConnectPeer)).peer_id
    prefill.engine.emit(peer_down(peer_id, closed=False, code=9, message="layouts differ"))
    error = await _error_of(pair.read())
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.LAYOUT_MISMATCH)
    assert "layouts differ" in error.message


async def test_the_callers_end_breaks_the_pair(prefill: Instance) -> None:
    pair: Any = prefill.prefill.Connect(_connect_request(), timeout=20)
    await pair.read()
    pair.cancel()
    peer_id = (await prefill.engine.next(native.ConnectPeer)).peer_id
    assert (await prefill.engine.next(native.DisconnectPeer)).peer_id == peer_id


async def test_a_new_pair_is_answered_once_the_old_one_is_closed() -> None:
    launcher = FakeLauncher(lambda number: FakeEngine(number, pairs=False))
    async with prefill_instance(launcher) as prefill:
        old: Any = prefill.prefill.Connect(_connect_request(epoch=1), timeout=20)
        await old.read()
        new: Any = prefill.prefill.Connect(_connect_request(epoch=2), timeout=20)
        answer = asyncio.create_task(new.read())
        disconnect = await prefill.engine.next(native.DisconnectPeer)
        await asyncio.sleep(0.05)
        assert not answer.done()
        assert len(prefill.engine.sent(native.ConnectPeer)) == 1
        prefill.engine.emit(peer_down(disconnect.peer_id, closed=True))
        assert (await asyncio.wait_for(answer, 10)).endpoint.epoch == 1
        assert (await prefill.engine.next(native.ConnectPeer, 2)).epoch == 2
        assert (await _error_of(old.read())).reason == Reason.UNREACHABLE
        new.cancel()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"handoff_id": b""}, "handoff_id"),
        ({"attempt": 0}, "attempt"),
        ({"token_ids": []}, "token_ids"),
        ({"tenant_salt": b"x" * 65}, "tenant_salt"),
        ({"target_instance_id": ""}, "target_instance_id"),
        ({"target_epoch": 0}, "target_epoch"),
        (
            {"sampling": decode_pb2.TokenSampling(top_p=1, max_tokens=1, temperature=-1)},
            "sampling.temperature",
        ),
    ],
)
async def test_bad_fields_are_named(prefill: Instance, changes: dict[str, Any], field: str) -> None:
    error = await _error_of(prefill.prefill.Prefill(prefill_request(**changes), timeout=10))
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field)
    assert not prefill.engine.commands


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"incarnation": 0}, "incarnation"),
        ({"mac_key": b"short"}, "mac_key"),
        ({"endpoint": kv_pb2.EngineEndpoint()}, "endpoint.instance_id"),
        ({"endpoint": kv_pb2.EngineEndpoint(instance_id="d")}, "endpoint.epoch"),
        ({"endpoint": kv_pb2.EngineEndpoint(instance_id="d", epoch=1)}, "endpoint.descriptor"),
    ],
)
async def test_bad_endpoints_are_named(
    prefill: Instance, changes: dict[str, Any], field: str
) -> None:
    call: Any = prefill.prefill.Connect(_connect_request(**changes), timeout=10)
    error = await _error_of(call.read())
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field)
    assert not prefill.engine.commands


async def test_a_drain_lets_running_handoffs_finish(prefill: Instance) -> None:
    pair: Any = prefill.prefill.Connect(_connect_request(), timeout=20)
    call = prefill.prefill.Prefill(prefill_request(), timeout=10)
    number = (await prefill.engine.next(native.Prefill)).task.sequence_id
    drain = asyncio.create_task(prefill.front.server.drain(10))
    await asyncio.sleep(0)
    other = prefill_request(request_id="r-2", handoff_id=b"z" * 16)
    error = await _error_of(prefill.prefill.Prefill(other, timeout=10))
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.DRAINING)
    prefill.engine.emit(handoff_done(number, 3))
    assert (await call).first_token.token_id == 7
    assert await drain
    pair.cancel()
