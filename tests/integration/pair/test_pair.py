"""Prompts computed by one engine and continued by another, through their fronts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import decode_pb2
from crossdock.errors import Code, CrossdockError, Reason
from crossdock.rpc.status import from_rpc_error
from tests.integration.pair.conftest import (
    Answer,
    Pair,
    decode_instance,
    prefill_instance,
    prompt,
    request_fields,
)
from tests.tiny_models.directory import TinyModel, write_tiny_model


async def error_of(call: Any) -> CrossdockError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return from_rpc_error(raised.value)


async def test_a_handoff_changes_no_bit(pair: Pair) -> None:
    for num_tokens in (1, 31, 32, 33, 64, 500):
        handed_off = await pair.handed_off(prompt(num_tokens))
        local = await pair.local(prompt(num_tokens))
        assert handed_off.tokens == local.tokens
        assert handed_off.digests == local.digests
        assert handed_off.positions == list(range(num_tokens, num_tokens + 8))
        assert handed_off.finish == decode_pb2.ENGINE_FINISH_LENGTH
        reply = handed_off.prefill
        assert reply is not None
        assert reply.first_token.token_id == handed_off.tokens[0]
        assert reply.first_token.position == num_tokens
        assert reply.first_token.logit_digest == handed_off.digests[0]
        assert reply.handoff_bytes > 0
    assert (await pair.prefill.status()).peers[0].state == "ready"


async def test_a_warm_prefix_is_not_sent_again(pair: Pair) -> None:
    cold = await pair.handed_off(prompt(200))
    warm = await pair.handed_off(prompt(200))
    assert (cold.tokens, cold.digests) == (warm.tokens, warm.digests)
    assert (cold.cached_prompt_tokens, warm.cached_prompt_tokens) == (0, 192)
    assert cold.prefill is not None
    assert warm.prefill is not None
    assert warm.prefill.handoff_bytes < cold.prefill.handoff_bytes
    assert warm.prefill.cached_prompt_tokens == 192


async def test_the_counters_of_handoffs_reach_the_status(pair: Pair) -> None:
    for expected in (1, 2):
        await pair.handed_off(prompt(40))
        for instance in (pair.prefill, pair.decode):
            status = await instance.until_free()
            moved = {c.name: c.value for c in status.counters if c.name.startswith("handoff_")}
            assert moved.pop("handoff_commits") == expected
            assert moved, "nothing but commits is counted"
            assert not any(moved.values()), moved


async def test_a_seed_draws_the_same_everywhere(pair: Pair) -> None:
    drawn = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 1234}
    handed_off = await pair.handed_off(prompt(40), 16, **drawn)
    local = await pair.local(prompt(40), 16, **drawn)
    other = await pair.local(prompt(40), 16, **(drawn | {"seed": 1235}))
    assert handed_off.tokens == local.tokens
    assert handed_off.tokens != other.tokens


async def test_many_at_once_equal_themselves_alone(pair: Pair) -> None:
    prompts = [prompt(1 + 13 * i, seed=i) for i in range(16)]
    crowd = await asyncio.gather(*(pair.handed_off(tokens) for tokens in prompts))
    for tokens, answer in zip(prompts, crowd, strict=True):
        assert answer.digests == (await pair.local(tokens)).digests
    await pair.prefill.until_free()
    await pair.decode.until_free()


async def test_cancelled_requests_leave_nothing_reserved(pair: Pair) -> None:
    await pair.handed_off(prompt(10))
    for steps in range(8):
        handoffs = [await pair.start(prompt(300, seed=i), 100) for i in range(4)]
        await asyncio.sleep(0.004 * steps)
        for handoff in handoffs:
            handoff.cancel()
    await pair.prefill.until_free()
    await pair.decode.until_free()
    assert len((await pair.handed_off(prompt(20))).tokens) == 8


async def test_the_prefill_engines_death_is_survived(pair: Pair) -> None:
    reference = await pair.handed_off(prompt(100))
    before = await pair.prefill.status()
    handoffs = [await pair.start(prompt(400, seed=i), 4) for i in range(4)]
    os.kill(before.engine_pid, signal.SIGKILL)
    for handoff in handoffs:
        outcomes = await asyncio.gather(handoff.answer(), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, grpc.aio.AioRpcError):
                assert outcome.code() == grpc.StatusCode.UNAVAILABLE
            else:
                assert not isinstance(outcome, BaseException)
    await pair.decode.until_free()
    after = await pair.prefill.until(lambda status: status.ready)
    assert after.epoch != before.epoch
    assert after.num_engine_restarts == 1
    again = await pair.handed_off(prompt(100))
    assert again.digests == reference.digests


async def test_the_decode_engines_death_is_survived(pair: Pair) -> None:
    reference = await pair.handed_off(prompt(100))
    before = await pair.decode.status()
    handoffs = [await pair.start(prompt(100, seed=i), 3_000) for i in range(4)]
    os.kill(before.engine_pid, signal.SIGKILL)
    # On a busy machine the first ones may be over before the last one begins.
    outcomes = [(await asyncio.gather(h.answer(), return_exceptions=True))[0] for h in handoffs]
    lost = [outcome for outcome in outcomes if isinstance(outcome, grpc.aio.AioRpcError)]
    ended = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    assert {error.code() for error in lost} == {grpc.StatusCode.UNAVAILABLE}
    assert all(len(answer.tokens) == 3_000 for answer in ended)
    assert len(lost) + len(ended) == len(handoffs)
    for handoff in handoffs:
        handoff.cancel()
    await pair.prefill.until_free()
    await pair.decode.until(lambda status: status.ready and status.epoch != before.epoch)
    again = await pair.handed_off(prompt(100))
    assert again.digests == reference.digests


async def test_a_hung_engine_holds_up_nobody_else(pair: Pair) -> None:
    """A stopped decode engine: the caller's deadline ends its request, and it resumes unharmed."""
    await pair.handed_off(prompt(50))
    source, target = await pair.prefill.status(), await pair.decode.status()
    pid = target.engine_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        handoff = pair.start_between(source, target, request_fields(prompt(50, seed=1), 8, {}))
        await asyncio.sleep(0.2)
        handoff.cancel()
    finally:
        os.kill(pid, signal.SIGCONT)
    await pair.decode.until_free()
    await pair.prefill.until_free()
    assert len((await pair.handed_off(prompt(50))).tokens) == 8


async def test_models_that_differ_are_refused_with_both(tiny_model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", TinyModel(seed=5))
    async with prefill_instance(other) as prefill, decode_instance(tiny_model) as decode:
        handoff = await Pair(prefill, decode).start(prompt(10))
        error = await error_of(handoff.decode_call.read())
        assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, Reason.LAYOUT_MISMATCH)
        assert error.message.count("model=") == 2
        handoff.cancel()


async def test_a_pool_of_another_kv_dtype_receives_converted_blocks(
    pair: Pair, tiny_model: Path
) -> None:
    local = await pair.local(prompt(300))
    async with decode_instance(tiny_model, kv_dtype="bf16") as decode:
        mixed = Pair(pair.prefill, decode)
        for _ in range(2):
            handed_off = await mixed.handed_off(prompt(300))
            # The first token is prefill's own; rounding its keys and values moves what follows.
            assert handed_off.digests[0] == local.digests[0]
            assert handed_off.digests[1:] != local.digests[1:]
            assert len(handed_off.tokens) == len(local.tokens)
            assert handed_off.cached_prompt_tokens == 0
        await decode.until_free()
        await pair.prefill.until_free()
