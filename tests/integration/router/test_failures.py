"""Everything that can go wrong at an instance or on the caller's side, one scene each.

Each scene ends in `assert_drained`: no load is counted, no id is live, and no call runs anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import inference_pb2
from crossdock.errors import (
    Code,
    CrossdockError,
    Reason,
    draining,
    engine_restarted,
    handoff_lost,
    handoff_refused,
    internal,
    invalid_argument,
    layout_mismatch,
    overloaded,
    stale_epoch,
    unreachable,
)
from crossdock.rpc.status import from_rpc_error
from services.router import retry
from tests.integration.router.conftest import World, until
from tests.integration.router.fakes import WAIT_S, DecodeScript, PrefillScript, text_token

Params = inference_pb2.SamplingParams
MakeWorld = Callable[..., Any]
PROMPT = [9, 8, 7, 6, 5]
ENDED = engine_restarted("ended")


def request(max_tokens: int = 20, **fields: Any) -> dict[str, Any]:
    sampling = Params(max_tokens=max_tokens, seed=3, **fields)
    return {"token_ids": inference_pb2.TokenIds(ids=PROMPT), "sampling": sampling}


def expected(num_tokens: int) -> list[int]:
    """What an undisturbed run gives."""
    return [text_token(len(PROMPT) + index, 3) for index in range(num_tokens)]


def ids_of(responses: list[inference_pb2.GenerateResponse]) -> list[int]:
    return [token for response in responses for token in response.token_ids]


async def assert_served(world: World, num_attempts: int, num_tokens: int = 20) -> None:
    """One request runs to its end, with the tokens of an undisturbed run."""
    responses = await world.generate(**request(num_tokens))
    assert ids_of(responses) == expected(num_tokens)
    finish = responses[-1].finish
    assert finish.usage.completion_tokens == num_tokens
    assert finish.usage.prompt_tokens == len(PROMPT)
    assert finish.timings.attempts == num_attempts
    await world.assert_drained()


async def assert_refused(world: World, code: Code, reason: str, **fields: Any) -> CrossdockError:
    """One request ends in this error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.generate(**(request() | fields))
    error = from_rpc_error(caught.value)
    assert (error.code, error.reason) == (code, reason)
    await world.assert_drained()
    return error


@pytest.mark.parametrize(
    "error",
    [
        overloaded("full"),
        draining("prefill-0"),
        # Its engine has no room, and the decode instance waits for an open that never comes.
        handoff_refused("no room"),
    ],
    ids=lambda error: error.reason,
)
async def test_another_prefill_takes_what_one_does_not(
    make_world: MakeWorld, error: CrossdockError
) -> None:
    world = await make_world(num_prefill=2)
    world.prefill[0].scripts.append(PrefillScript(fail_before=error))
    await assert_served(world, num_attempts=2)


@pytest.mark.parametrize(
    ("num_prefill", "num_decode", "error"),
    [
        (1, 2, handoff_refused("full")),
        (2, 1, handoff_lost("peer down")),
        # The only prefill instance is waited for.
        (1, 1, handoff_lost("peer down")),
        # As in a fleet of two versions, or of instances that share no transport.
        (2, 2, layout_mismatch("layouts differ")),
    ],
)
async def test_another_attempt_follows_what_a_decode_reports(
    make_world: MakeWorld, num_prefill: int, num_decode: int, error: CrossdockError
) -> None:
    world = await make_world(num_prefill, num_decode)
    world.decode[0].scripts.append(DecodeScript(error=error))
    await assert_served(world, num_attempts=2)


async def test_attempts_share_neither_handoff_id_nor_number(make_world: MakeWorld) -> None:
    world = await make_world(num_decode=2)
    world.decode[0].scripts.append(DecodeScript(error=handoff_refused("full")))
    await assert_served(world, num_attempts=2)
    requests = [fake.instance.requests[0] for fake in world.decode]
    assert requests[0].handoff_id != requests[1].handoff_id
    assert [sent.attempt for sent in requests] == [1, 2]
    assert requests[0].sampling.seed == requests[1].sampling.seed == 3


async def test_every_decode_refuses(make_world: MakeWorld) -> None:
    world = await make_world(num_decode=2)
    for fake in world.decode:
        fake.scripts.append(DecodeScript(error=handoff_refused("full")))
    error = await assert_refused(world, Code.RESOURCE_EXHAUSTED, Reason.OVERLOADED)
    assert error.retry_after_s is not None
    await assert_served(world, num_attempts=1)


async def test_every_prefill_refuses(make_world: MakeWorld) -> None:
    world = await make_world(num_prefill=2)
    for fake in world.prefill:
        fake.scripts.append(PrefillScript(fail_before=overloaded("full")))
    await assert_refused(world, Code.RESOURCE_EXHAUSTED, Reason.OVERLOADED)


async def test_where_no_two_make_a_pair_that_is_the_answer(make_world: MakeWorld) -> None:
    world = await make_world(num_decode=2)
    for fake in world.decode:
        fake.scripts.append(DecodeScript(error=layout_mismatch("layouts differ")))
    error = await assert_refused(world, Code.FAILED_PRECONDITION, Reason.LAYOUT_MISMATCH)
    assert "layouts differ" in error.message


async def test_beside_a_mismatch_an_instance_that_is_full_is_worth_another_try(
    make_world: MakeWorld,
) -> None:
    world = await make_world(num_decode=2)
    world.decode[0].scripts.append(DecodeScript(error=layout_mismatch("layouts differ")))
    world.decode[1].scripts.append(DecodeScript(error=handoff_refused("full")))
    await assert_refused(world, Code.RESOURCE_EXHAUSTED, Reason.OVERLOADED)


async def test_prefill_dies_before_the_commit(make_world: MakeWorld) -> None:
    world = await make_world(num_prefill=2)
    world.prefill[0].scripts.append(PrefillScript(hang=True))
    task = asyncio.create_task(world.generate(**request()))
    await until(lambda: world.decode[0].instance.num_live == 1)
    await until(lambda: world.prefill[0].instance.num_live == 1)
    await world.prefill[0].instance.kill()
    responses = await task
    assert ids_of(responses) == expected(20)
    assert responses[-1].finish.timings.attempts == 2
    assert len(world.prefill[1].instance.requests) == 1
    await world.assert_drained()


async def test_prefill_dies_after_the_commit(world: World) -> None:
    """Nothing is retried: the decode instance has what it needs."""
    world.prefill[0].scripts.append(PrefillScript(fail_after=unreachable("gone")))
    world.decode[0].scripts.append(DecodeScript(hold_after=5))
    task = asyncio.create_task(world.generate(**request()))
    await until(lambda: bool(world.decode[0].instance.requests))
    await until(lambda: world.prefill[0].instance.num_live == 0)
    world.fabric.release.set()
    responses = await task
    assert ids_of(responses) == expected(20)
    assert responses[-1].finish.timings.attempts == 1
    assert len(world.decode[0].instance.requests) == 1
    await world.assert_drained()


async def test_prefill_error_while_the_decode_instance_already_decodes(world: World) -> None:
    world.prefill[0].scripts.append(PrefillScript(fail_after=internal("bug")))
    await assert_served(world, num_attempts=1)


async def test_prefill_bug_before_the_commit_is_the_answer(world: World) -> None:
    world.prefill[0].scripts.append(PrefillScript(fail_before=internal("a bug")))
    await assert_refused(world, Code.INTERNAL, Reason.INTERNAL)


async def test_stale_epoch_is_tried_again_with_the_new_one(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(error=stale_epoch("epoch 12, not 11")))
    world.prefill[0].instance.epoch = 12
    await assert_served(world, num_attempts=2)
    assert world.decode[0].instance.requests[-1].source_epoch == 12


@pytest.mark.parametrize("num_before", [1, 7, 19])
async def test_decode_engine_dies_mid_stream(make_world: MakeWorld, num_before: int) -> None:
    world = await make_world(num_decode=2)
    world.decode[0].scripts.append(DecodeScript(fail_after=num_before, error=ENDED))
    await assert_served(world, num_attempts=2)
    replay = world.decode[1].instance.requests[0]
    assert list(replay.token_ids) == PROMPT + expected(num_before)
    assert replay.num_generated_tokens == num_before
    assert world.prefill[0].instance.requests[0].num_generated_tokens == 0
    assert world.prefill[0].instance.requests[1].num_generated_tokens == num_before
    assert replay.sampling.max_tokens == 20 - num_before


async def test_min_tokens_counts_over_attempts(make_world: MakeWorld) -> None:
    world = await make_world(num_decode=2)
    world.decode[0].scripts.append(DecodeScript(fail_after=4, error=ENDED))
    await world.generate(**request(20, min_tokens=6))
    assert world.decode[1].instance.requests[0].sampling.min_tokens == 2
    await world.assert_drained()


async def test_decode_process_dies_mid_stream(make_world: MakeWorld) -> None:
    world = await make_world(num_decode=2)
    world.decode[0].scripts.append(DecodeScript(hold_after=8))
    task = asyncio.create_task(world.generate(**request()))
    await until(lambda: bool(world.prefill[0].instance.requests) and not _busy(world.prefill))
    await world.decode[0].instance.kill()
    responses = await task
    assert ids_of(responses) == expected(20)
    await world.assert_drained()


async def test_decode_dies_on_every_attempt(make_world: MakeWorld) -> None:
    """A request that kills instances is given up after max_migrations."""
    world = await make_world(num_decode=2, max_migrations=2)
    for fake in world.decode:
        for _ in range(4):
            fake.scripts.append(DecodeScript(fail_after=2, error=ENDED))
    await assert_refused(world, Code.UNAVAILABLE, Reason.ENGINE_RESTARTED)
    assert sum(len(fake.instance.requests) for fake in world.decode) == 3


async def test_the_callers_answer_to_lost_attempts_is_to_try_later(make_world: MakeWorld) -> None:
    """ABORTED is what the instances told each other; the caller did nothing to be aborted for."""
    world = await make_world(num_decode=2, max_migrations=1)
    for fake in world.decode:
        error = CrossdockError(Code.ABORTED, "the commit was refused", Reason.INTERNAL)
        fake.scripts += [DecodeScript(error=error) for _ in range(2)]
    await assert_refused(world, Code.UNAVAILABLE, Reason.INTERNAL)


async def test_a_new_request_waits_for_the_word_of_a_suspect(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request's failure is no refusal for those that come within the next second."""
    monkeypatch.setattr(retry, "TRUST_WAIT_S", WAIT_S)
    decode = world.decode[0]
    decode.scripts.append(DecodeScript(fail_after=3, error=ENDED))
    decode.instance.reports.clear()
    first = asyncio.create_task(world.generate(**request()))
    await until(lambda: world.router.fleet.snapshot().decode[0].suspect)
    second = asyncio.create_task(assert_served(world, num_attempts=1))
    await until(lambda: len(world.router.live) == 2)
    decode.instance.reports.set()
    await second
    assert ids_of(await first) == expected(20)
    await world.assert_drained()


async def test_after_a_loss_a_full_instance_is_waited_for(world: World) -> None:
    world.decode[0].scripts += [
        DecodeScript(fail_after=3, error=ENDED),
        DecodeScript(error=handoff_refused("full")),
    ]
    await assert_served(world, num_attempts=3)


async def test_only_the_word_of_the_end_was_lost(world: World) -> None:
    """All tokens are out when the stream breaks: nothing is left to replay."""
    world.decode[0].scripts.append(DecodeScript(end_without_finish=True, error=ENDED))
    responses = await world.generate(**request(4))
    assert ids_of(responses) == expected(4)
    assert responses[-1].finish.reason == inference_pb2.FINISH_REASON_LENGTH
    assert len(world.decode[0].instance.requests) == 1
    await world.assert_drained()


async def test_stream_without_finish_is_no_success(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(end_without_finish=True))
    await assert_refused(world, Code.INTERNAL, Reason.INTERNAL)


async def test_no_instance_is_ready(make_world: MakeWorld) -> None:
    world = await make_world()
    world.decode[0].instance.ready = False
    await until(lambda: world.router.fleet.limits() is None)
    await assert_refused(world, Code.UNAVAILABLE, Reason.NOT_READY)


async def test_the_only_decode_does_not_come_back(make_world: MakeWorld) -> None:
    world = await make_world(instance_wait=0.3)
    world.decode[0].scripts.append(DecodeScript(fail_after=3, error=ENDED, is_away_then=True))
    await assert_refused(world, Code.UNAVAILABLE, Reason.NOT_READY)


async def test_bad_argument_found_by_an_instance_is_the_answer(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(error=invalid_argument("token_ids", "too long")))
    await assert_refused(world, Code.INVALID_ARGUMENT, Reason.INVALID_FIELD)
    assert len(world.decode[0].instance.requests) == 1


async def test_prefill_and_decode_disagree_on_the_first_token(world: World) -> None:
    world.prefill[0].first_tokens.append(4)
    world.decode[0].scripts.append(DecodeScript(hold_after=1))
    task = asyncio.create_task(world.generate(**request()))
    await until(lambda: bool(world.prefill[0].instance.requests))
    world.fabric.release.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await task
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    await world.assert_drained()


async def _cancel_when(world: World, ready: Callable[[], bool]) -> None:
    call = world.stub.Generate(inference_pb2.GenerateRequest(**request()))
    reading = asyncio.create_task(_read_all(call))
    await until(ready)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await world.assert_drained()


async def _read_all(call: Any) -> None:
    async for _ in call:
        pass


async def test_caller_cancels_before_the_commit(world: World) -> None:
    world.prefill[0].scripts.append(PrefillScript(hang=True))
    await _cancel_when(world, lambda: world.decode[0].instance.num_live == 1)


async def test_caller_cancels_while_decoding(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(hold_after=5))
    await _cancel_when(
        world, lambda: bool(world.prefill[0].instance.requests) and not _busy(world.prefill)
    )


async def test_caller_cancels_while_the_router_waits_for_an_instance(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(fail_after=3, error=ENDED, is_away_then=True))
    await _cancel_when(
        world, lambda: bool(world.decode[0].instance.requests) and not _busy(world.decode)
    )


def _busy(fakes: list[Any]) -> bool:
    return any(fake.instance.num_live for fake in fakes)


async def test_caller_closes_its_channel(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(hold_after=5))
    call = aiter(world.stub.Generate(inference_pb2.GenerateRequest(**request())))
    await anext(call)
    await world.channel.close(None)
    await world.assert_drained()


@pytest.mark.parametrize("stage", ["prefill", "decode"])
async def test_deadline_passes(world: World, stage: str) -> None:
    if stage == "prefill":
        world.prefill[0].scripts.append(PrefillScript(hang=True))
    else:
        world.decode[0].scripts.append(DecodeScript(hold_after=3))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read_all(
            world.stub.Generate(inference_pb2.GenerateRequest(**request()), timeout=0.4)
        )
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await world.assert_drained()


async def test_load_goes_to_the_emptier_instance(make_world: MakeWorld) -> None:
    world = await make_world(num_decode=2)
    busy = world.decode[0]
    busy.scripts.append(DecodeScript(hold_after=1))
    call = aiter(world.stub.Generate(inference_pb2.GenerateRequest(**request(200))))
    await anext(call)
    assert len(busy.instance.requests) == 1
    for _ in range(3):
        await world.generate(**request(2))
    assert len(busy.instance.requests) == 1
    assert len(world.decode[1].instance.requests) == 3
    world.fabric.release.set()
    async for _ in call:
        pass
    await world.assert_drained()
