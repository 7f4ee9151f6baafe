"""What the router counts of attempts, retries and requests, one scene each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from crossdock.api.v1 import inference_pb2
from crossdock.errors import handoff_lost, internal, overloaded
from tests.integration.router.conftest import World, until
from tests.integration.router.fakes import DecodeScript, PrefillScript

MakeWorld = Callable[..., Any]
PROMPT = [9, 8, 7, 6, 5]


def request(max_tokens: int = 20) -> dict[str, Any]:
    sampling = inference_pb2.SamplingParams(max_tokens=max_tokens, seed=3)
    return {"token_ids": inference_pb2.TokenIds(ids=PROMPT), "sampling": sampling}


def counted(world: World) -> dict[tuple[str, ...], float]:
    """What is not zero, by name and label values; buckets and sums of times left out."""
    return {
        (sample.name.removeprefix("crossdock_router_"), *sample.labels.values()): sample.value
        for family in world.router.metrics.collect()
        for sample in family.samples
        if sample.value and not sample.name.endswith(("_bucket", "_created", "_sum"))
    }


def fleet() -> dict[tuple[str, ...], float]:
    """Every instance serves."""
    return {("instances", role, "serving"): 1 for role in ("prefill", "decode")}


OF_TWENTY_TOKENS: dict[tuple[str, ...], float] = {
    ("requests_total", "length"): 1,
    ("prompt_tokens_total",): len(PROMPT),
    ("cached_prompt_tokens_total",): 1,  # as the fakes say
    ("generated_tokens_total",): 20,
    ("time_to_first_token_seconds_count",): 1,
    ("time_per_output_token_seconds_count",): 1,
    ("request_seconds_count",): 1,
    ("attempts_total", "finished"): 1,
}


async def test_a_request(world: World) -> None:
    await world.generate(**request())
    await world.assert_drained()
    assert {key: n for key, n in counted(world).items() if key[0] != "handoff_seconds_count"} == (
        OF_TWENTY_TOKENS | fleet()
    )


async def test_a_request_of_one_token_has_no_time_between_tokens(world: World) -> None:
    await world.generate(**request(1))
    found = counted(world)
    assert found["time_to_first_token_seconds_count",] == 1
    assert ("time_per_output_token_seconds_count",) not in found


@pytest.mark.parametrize("how", ["refused", "lost"])
async def test_a_failure_and_the_retry(make_world: MakeWorld, how: str) -> None:
    world = await make_world(num_prefill=2)
    if how == "refused":
        world.prefill[0].scripts.append(PrefillScript(fail_before=overloaded("full")))
    else:
        world.decode[0].scripts.append(DecodeScript(error=handoff_lost("peer down")))
    await world.generate(**request())
    found = counted(world)
    assert found["attempts_total", how] == found["attempts_total", "finished"] == 1
    assert [key[1] for key in found if key[0] == "retries_total"] == [how]
    assert found["retries_total", how] == 1


async def test_an_error_is_counted_by_its_code(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(error=internal("a bug")))
    with pytest.raises(grpc.aio.AioRpcError):
        await world.generate(**request())
    await world.assert_drained()
    found = counted(world)
    assert found["requests_total", "internal"] == 1
    assert found["attempts_total", "fatal"] == 1
    assert ("requests_total", "length") not in found


async def test_a_request_that_never_ran(world: World) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await world.generate(**(request() | {"model": "another"}))
    found = counted(world)
    assert sum(n for key, n in found.items() if key[0] == "requests_total") == 1
    assert not any(key[0] in ("attempts_total", "request_seconds_count") for key in found)


async def test_a_caller_that_leaves(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(hold_after=2))
    call = asyncio.create_task(world.generate(**request()))
    await until(lambda: counted(world).get(("live_requests",)) == 1)
    call.cancel()
    await world.assert_drained()
    await until(lambda: ("requests_total", "cancelled") in counted(world))
    found = counted(world)
    assert found["requests_total", "cancelled"] == 1
    assert ("live_requests",) not in found
