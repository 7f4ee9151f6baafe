"""Decode.Generate over gRPC, before an engine in Python."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from crossdock import _native as native
from crossdock.api.v1 import decode_pb2, kv_pb2
from crossdock.engine import limits
from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc.status import from_rpc_error
from tests.fakes.engine import ended, started, token, tokens
from tests.fakes.fleet import Instance, decode_instance, epochs, prefill_instance
from tests.fakes.requests import HANDOFF_ID, decode_request


@pytest.fixture
async def decode() -> AsyncIterator[Instance]:
    async with decode_instance(epochs(21, 22, 23)) as instance:
        yield instance


@pytest.fixture
async def prefill() -> AsyncIterator[Instance]:
    async with prefill_instance(epochs(11, 12, 13)) as instance:
        yield instance


def _handed_off(prefill: Instance, **changes: Any) -> decode_pb2.DecodeRequest:
    fields: dict[str, Any] = {
        "handoff_id": HANDOFF_ID,
        "source_instance_id": "prefill-1",
        "source_address": prefill.address,
        "source_epoch": prefill.engine.epoch,
    }
    return decode_request(**(fields | changes))


async def _error_of(call: Any) -> CrossdockError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    return from_rpc_error(raised.value)


async def test_tokens_stream_until_the_finish(decode: Instance) -> None:
    call = decode.decode.Generate(decode_request(return_logit_digests=True), timeout=10)
    command = await decode.engine.next(native.Generate)
    number = command.task.sequence_id
    assert (command.task.prompt, command.task.sampling.seed) == ([1, 2, 3], 5)
    decode.engine.emit(started(number, num_cached_tokens=32), tokens(token(number, 3)))
    first: Any = await call.read()
    assert [(t.token_id, t.position, len(t.logit_digest)) for t in first.tokens] == [(3, 3, 16)]
    assert first.finish == decode_pb2.ENGINE_FINISH_UNSPECIFIED
    decode.engine.emit(tokens(token(number, 4, native.Finish.LENGTH)))
    last: Any = await call.read()
    assert last.finish == decode_pb2.ENGINE_FINISH_LENGTH
    assert (last.cached_prompt_tokens, last.queue_ms, last.prefill_ms) == (32, 2.0, 3.0)
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    assert not decode.engine.sent(native.Cancel)


async def test_tokens_that_are_ready_together_travel_together(decode: Instance) -> None:
    call = decode.decode.Generate(decode_request(), timeout=10)
    number = (await decode.engine.next(native.Generate)).task.sequence_id
    decode.engine.emit(
        *(tokens(token(number, position)) for position in range(3, 8)),
        tokens(token(number, 8, native.Finish.STOP)),
    )
    messages = [message async for message in call]
    assert [t.position for t in messages[0].tokens] == [3, 4, 5, 6, 7, 8]
    assert messages[-1].finish == decode_pb2.ENGINE_FINISH_STOP
    assert len(messages[0].tokens[0].logit_digest) == 0


async def test_a_handoff_is_expected_after_the_pair_is_ready(
    decode: Instance, prefill: Instance
) -> None:
    call = decode.decode.Generate(_handed_off(prefill), timeout=10)
    expect = await decode.engine.next(native.Expect)
    assert (expect.source_epoch, expect.attempt) == (11, 1)
    assert expect.handoff_high == int.from_bytes(HANDOFF_ID[:8], "big")
    ours = await decode.engine.next(native.ConnectPeer)
    theirs = await prefill.engine.next(native.ConnectPeer)
    assert (ours.epoch, theirs.epoch) == (11, 21)
    assert ours.incarnation == theirs.incarnation != 0
    assert ours.mac_key == theirs.mac_key
    assert len(ours.mac_key) == 32
    number = expect.task.sequence_id
    decode.engine.emit(tokens(token(number, 3, native.Finish.STOP)))
    assert [message.finish async for message in call] == [decode_pb2.ENGINE_FINISH_STOP]


async def test_requests_share_one_pair(decode: Instance, prefill: Instance) -> None:
    calls = [
        decode.decode.Generate(
            _handed_off(prefill, request_id=f"r-{i}", handoff_id=bytes([i]) * 16), timeout=10
        )
        for i in range(5)
    ]
    await decode.engine.next(native.Expect, 5)
    assert len(decode.engine.sent(native.ConnectPeer)) == 1
    assert len(prefill.engine.sent(native.ConnectPeer)) == 1
    for call in calls:
        call.cancel()


async def test_a_stale_epoch_is_refused(decode: Instance, prefill: Instance) -> None:
    for _ in range(2):  # without a pair, and again
        error = await _error_of(
            decode.decode.Generate(_handed_off(prefill, source_epoch=99), timeout=10)
        )
        assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.STALE_EPOCH)
    assert not decode.engine.sent(native.Expect)
    assert not decode.engine.sent(native.ConnectPeer)


async def test_a_pair_that_lives_names_the_present_epoch(
    decode: Instance, prefill: Instance
) -> None:
    call = decode.decode.Generate(_handed_off(prefill), timeout=10)
    await decode.engine.next(native.Expect)
    other = _handed_off(prefill, request_id="r-2", handoff_id=b"z" * 16, source_epoch=99)
    error = await _error_of(decode.decode.Generate(other, timeout=10))
    assert error.reason == Reason.STALE_EPOCH
    assert not decode.engine.sent(native.DisconnectPeer)
    call.cancel()


async def test_an_unreachable_source_is_unavailable(decode: Instance, prefill: Instance) -> None:
    request = _handed_off(prefill, source_address="127.0.0.1:1")
    error = await _error_of(decode.decode.Generate(request, timeout=10))
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.UNREACHABLE)


async def test_the_end_of_the_stream_cancels_in_the_engine(decode: Instance) -> None:
    call = decode.decode.Generate(decode_request(), timeout=10)
    number = (await decode.engine.next(native.Generate)).task.sequence_id
    call.cancel()
    assert (await decode.engine.next(native.Cancel)).sequence_id == number
    async with asyncio.timeout(10):
        while len(decode.front.live):  # noqa: ASYNC110 - the end of a call has no event
            await asyncio.sleep(0.001)


async def test_the_deadline_cancels_in_the_engine(decode: Instance) -> None:
    for number in itertools.count():
        request = decode_request(request_id=f"r-{number}")
        error = await _error_of(decode.decode.Generate(request, timeout=0.1))
        assert error.code is Code.DEADLINE_EXCEEDED
        if decode.engine.sent(native.Generate):  # On a busy machine it may not come so far.
            break
    await decode.engine.next(native.Cancel)


async def test_a_live_request_id_is_refused(decode: Instance) -> None:
    call = decode.decode.Generate(decode_request(), timeout=10)
    await decode.engine.next(native.Generate)
    error = await _error_of(decode.decode.Generate(decode_request(), timeout=10))
    assert (error.code, error.field) == (Code.ALREADY_EXISTS, "request_id")
    call.cancel()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1_000]}, "token_ids"),
        ({"handoff_id": b"short"}, "handoff_id"),
        ({"handoff_id": HANDOFF_ID}, "source_instance_id"),
        ({"source_instance_id": "p", "source_address": "a:1", "source_epoch": 1}, "handoff_id"),
        ({"handoff_id": HANDOFF_ID, "source_instance_id": "p"}, "source_address"),
        (
            {"handoff_id": HANDOFF_ID, "source_instance_id": "p", "source_address": "a:1"},
            "source_epoch",
        ),
        ({"sampling": decode_pb2.TokenSampling(max_tokens=1)}, "sampling.top_p"),
    ],
)
async def test_bad_fields_are_named_and_nothing_is_allocated(
    decode: Instance, changes: dict[str, Any], field: str
) -> None:
    error = await _error_of(decode.decode.Generate(decode_request(**changes), timeout=10))
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field)
    assert not decode.engine.commands


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (Code.UNAVAILABLE, Reason.HANDOFF_LOST),
        (Code.RESOURCE_EXHAUSTED, Reason.HANDOFF_REFUSED),
    ],
)
async def test_a_handoff_that_fails_says_how(
    decode: Instance, prefill: Instance, code: Code, reason: Reason
) -> None:
    call = decode.decode.Generate(_handed_off(prefill), timeout=10)
    number = (await decode.engine.next(native.Expect)).task.sequence_id
    decode.engine.emit(ended(number, code, "told why"))
    error = await _error_of(call)
    assert (error.code, error.reason, error.message) == (code, reason, "told why")
    assert not decode.engine.sent(native.Cancel)


async def test_a_dead_engine_fails_its_requests_and_is_replaced(decode: Instance) -> None:
    call = decode.decode.Generate(decode_request(), timeout=10)
    await decode.engine.next(native.Generate)
    decode.engine.kill()
    error = await _error_of(call)
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.ENGINE_RESTARTED)
    health = health_pb2_grpc.HealthStub(decode.channel)
    async with asyncio.timeout(10):
        status = 0
        while status != health_pb2.HealthCheckResponse.SERVING or len(decode.launcher.engines) < 2:
            status = (await health.Check(health_pb2.HealthCheckRequest(), timeout=5)).status
    again = decode.decode.Generate(decode_request(), timeout=10)
    await decode.engine.next(native.Generate)
    assert decode.engine.epoch == 22
    again.cancel()


async def test_the_sources_death_is_told_to_the_engine(decode: Instance, prefill: Instance) -> None:
    call = decode.decode.Generate(_handed_off(prefill), timeout=20)
    await decode.engine.next(native.Expect)
    prefill.engine.kill()
    assert (await decode.engine.next(native.PeerLost)).epoch == 11
    assert await decode.engine.next(native.DisconnectPeer)
    # The next request names the new epoch, and a new pair is made.
    async with asyncio.timeout(10):
        while prefill.engine.epoch == 11 or not prefill.serving:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    other = _handed_off(prefill, request_id="r-2", handoff_id=b"z" * 16)
    assert other.source_epoch == 12
    second = decode.decode.Generate(other, timeout=10)
    assert (await decode.engine.next(native.Expect, 2)).source_epoch == 12
    call.cancel()
    second.cancel()


async def test_our_engines_death_ends_the_pair_on_both_sides(
    decode: Instance, prefill: Instance
) -> None:
    call = decode.decode.Generate(_handed_off(prefill), timeout=10)
    await decode.engine.next(native.Expect)
    decode.engine.kill()
    assert await prefill.engine.next(native.DisconnectPeer)
    await _error_of(call)
    async with asyncio.timeout(10):
        while decode.front.supervisor.num_restarts == 0 or not decode.serving:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    again = decode.decode.Generate(_handed_off(prefill), timeout=10)
    await decode.engine.next(native.Expect)
    assert [command.epoch for command in prefill.engine.sent(native.ConnectPeer)] == [21, 22]
    again.cancel()


async def test_a_busy_engine_is_described_by_its_last_report(
    decode: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    await decode.decode.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    decode.engine.answers_status = False
    monkeypatch.setattr(limits, "STATUS_MAX_S", 0.02)
    status = await decode.decode.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    assert (status.ready, status.num_steps) == (True, 42)


async def test_an_engine_that_ends_meanwhile_is_not_ready(decode: Instance) -> None:
    decode.engine.answers_status = False
    call = decode.decode.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    await decode.engine.next(native.QueryStatus)
    decode.engine.kill()
    status = await call
    assert (status.instance_id, status.ready) == ("decode-1", False)


async def test_status_joins_engine_and_front(decode: Instance, prefill: Instance) -> None:
    call = decode.decode.Generate(_handed_off(prefill), timeout=10)
    await decode.engine.next(native.Expect)
    status = await decode.decode.GetStatus(kv_pb2.InstanceRequest(), timeout=10)
    assert (status.instance_id, status.role, status.epoch) == ("decode-1", "decode", 21)
    assert (status.ready, status.draining, status.model) == (True, False, "tiny")
    assert (status.num_blocks, status.num_free_blocks, status.queued_tokens) == (8, 5, 99)
    assert status.num_reserved_sequences == 1
    assert [(p.instance_id, p.transport, p.state) for p in status.peers] == [
        ("prefill-1", "shm", "ready")
    ]
    assert [(c.name, c.value) for c in status.counters] == [("steps", 42)]
    call.cancel()
