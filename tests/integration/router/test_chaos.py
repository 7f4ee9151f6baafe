"""Many requests at once, with failures, aborts and cancellations drawn from a seed.

Whatever happens, each request ends exactly once, tokens that came are those of an undisturbed
run, a success is complete, and nothing stays in flight.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import inference_pb2
from crossdock.errors import (
    engine_restarted,
    handoff_lost,
    handoff_refused,
    overloaded,
    stale_epoch,
    unreachable,
)
from tests.integration.router.conftest import World
from tests.integration.router.fakes import WAIT_S, DecodeScript, PrefillScript, text_token

NUM_REQUESTS = 80
PROMPT = [7] * 5


def decode_script(draw: random.Random) -> DecodeScript:
    kind = draw.randrange(8)
    per_message = draw.randint(1, 4)
    match kind:
        case 0:
            return DecodeScript(error=handoff_refused("full"))
        case 1:
            return DecodeScript(error=draw.choice([handoff_lost("x"), stale_epoch("x")]))
        case 2:
            error = draw.choice([engine_restarted("x"), unreachable("x")])
            return DecodeScript(
                fail_after=draw.randint(0, 20), error=error, per_message=per_message
            )
        case 3:
            return DecodeScript(end_without_finish=True, error=engine_restarted("x"))
        case _:
            return DecodeScript(per_message=per_message)


def prefill_script(draw: random.Random) -> PrefillScript:
    match draw.randrange(8):
        case 0:
            return PrefillScript(fail_before=overloaded("full"))
        case 1:
            return PrefillScript(fail_after=unreachable("x"))
        case _:
            return PrefillScript()


async def one(world: World, index: int, draw: random.Random) -> str:
    """Runs one request; how it ended."""
    num_tokens = draw.randint(1, 60)
    request = inference_pb2.GenerateRequest(
        request_id=f"r{index}",
        token_ids=inference_pb2.TokenIds(ids=PROMPT),
        sampling=inference_pb2.SamplingParams(max_tokens=num_tokens, seed=index),
    )
    call: Any = world.stub.Generate(request, timeout=WAIT_S)
    fate = draw.choice(["read", "read", "read", "abort", "cancel"])
    patience = draw.randint(0, 10)
    ids: list[int] = []
    finishes: list[inference_pb2.Finish] = []
    outcome = "ended"
    try:
        async for response in call:
            assert not finishes, "a message after the one with finish"
            ids += response.token_ids
            if response.HasField("finish"):
                finishes.append(response.finish)
            elif fate != "read" and len(ids) >= patience:
                await _interfere(world, call, request.request_id, fate)
                fate = "read"
    except asyncio.CancelledError:
        outcome = "cancelled"
    except grpc.aio.AioRpcError as error:
        assert not finishes
        outcome = error.code().name
    else:
        [finish] = finishes
        assert finish.usage.completion_tokens == len(ids)
        if finish.reason == inference_pb2.FINISH_REASON_ABORT:
            outcome = "aborted"
        else:
            assert len(ids) == num_tokens
    assert ids == [text_token(len(PROMPT) + i, index) for i in range(len(ids))]
    return outcome


async def _interfere(world: World, call: Any, request_id: str, fate: str) -> None:
    if fate == "cancel":
        call.cancel()
        return
    try:
        await world.stub.Abort(inference_pb2.AbortRequest(request_id=request_id))
    except grpc.aio.AioRpcError as error:
        # It may have ended in the meantime.
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise


@pytest.mark.parametrize("seed", range(4))
async def test_every_request_ends_once_with_the_right_tokens(
    make_world: Callable[..., Any], seed: int
) -> None:
    draw = random.Random(seed)
    world: World = await make_world(num_prefill=3, num_decode=3)
    for decode in world.decode:
        decode.scripts += [decode_script(draw) for _ in range(NUM_REQUESTS // 2)]
    for prefill in world.prefill:
        prefill.scripts += [prefill_script(draw) for _ in range(NUM_REQUESTS // 2)]
    outcomes = await asyncio.gather(
        *(one(world, index, random.Random(seed * 1000 + index)) for index in range(NUM_REQUESTS))
    )
    counts = Counter(outcomes)
    assert counts["ended"] > 0
    assert set(counts) <= {"ended", "aborted", "cancelled", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
    await world.assert_drained()
