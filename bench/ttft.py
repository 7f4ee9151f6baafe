"""Time to first token through four services, against one engine that does both phases.

Prompts of random tokens, so that nothing is cached; the two sides take turns, so that what else
the machine does meets both. Values are medians over the repetitions. What the difference consists
of is told by the router's timings; the rest is the row "router and gRPC".
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.figure import Figure
from crossdock.api.v1 import decode_pb2, decode_pb2_grpc, inference_pb2, inference_pb2_grpc
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.rpc.channel import open_channel

PROMPT_TOKENS = (32, 512, 1_500)
REPETITIONS = 7
_TIMEOUT_S = 120.0
# Plain words of the vocabulary; special tokens come before them.
_TOKEN_IDS = (1_000, 20_000)


@dataclass(frozen=True, slots=True)
class FleetRun:
    """One request through the router. Times in ms; `wall` is the caller's clock."""

    wall: float
    queue: float
    prefill: float
    handoff: float


@dataclass(frozen=True, slots=True)
class EngineRun:
    """The same on one engine."""

    wall: float
    queue: float
    prefill: float


async def measure(model: Path) -> AsyncIterator[Figure]:
    """Starts a fleet, measures every prompt length, stops the fleet."""
    with tempfile.TemporaryDirectory(prefix="crossdock-bench-") as folder:
        fleet = Fleet(FleetOptions(model_directory=model), Path(folder), name="bench")
        with fleet:
            assert fleet.record is not None
            router = open_channel(fleet.record.router.address)
            decode = open_channel(
                next(s.address for s in fleet.record.services if s.role == "decode")
            )
            try:
                inference = inference_pb2_grpc.InferenceStub(router)
                engine = decode_pb2_grpc.DecodeStub(decode)
                for num_tokens in PROMPT_TOKENS:
                    for figure in await _measure_length(inference, engine, num_tokens):
                        yield figure
            finally:
                await router.close(None)
                await decode.close(None)


async def _measure_length(
    inference: inference_pb2_grpc.InferenceAsyncStub,
    engine: decode_pb2_grpc.DecodeAsyncStub,
    num_tokens: int,
) -> list[Figure]:
    draw = random.Random(num_tokens)
    fleet_runs, engine_runs = [], []
    # The first of each meets cold caches and makes the pair of the two engines.
    for repetition in range(REPETITIONS + 1):
        fleet_run = await _through_fleet(inference, _prompt(draw, num_tokens))
        engine_run = await _on_one_engine(engine, _prompt(draw, num_tokens))
        if repetition > 0:
            fleet_runs.append(fleet_run)
            engine_runs.append(engine_run)
    return list(_figures(f"{num_tokens} tokens", fleet_runs, engine_runs))


def _prompt(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(*_TOKEN_IDS) for _ in range(num_tokens)]


async def _through_fleet(
    stub: inference_pb2_grpc.InferenceAsyncStub, prompt: list[int]
) -> FleetRun:
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    )
    start = time.perf_counter()
    wall = 0.0
    timings = inference_pb2.Timings()
    async for response in stub.Generate(request, timeout=_TIMEOUT_S):
        if response.token_ids and not wall:
            wall = (time.perf_counter() - start) * 1e3
        if response.HasField("finish"):
            timings = response.finish.timings
    return FleetRun(wall, timings.queue_ms, timings.prefill_ms, timings.handoff_ms)


async def _on_one_engine(stub: decode_pb2_grpc.DecodeAsyncStub, prompt: list[int]) -> EngineRun:
    request = decode_pb2.DecodeRequest(
        request_id=f"ttft-{time.perf_counter_ns()}",
        attempt=1,
        token_ids=prompt,
        sampling=decode_pb2.TokenSampling(
            temperature=0.0, top_p=1.0, max_tokens=2, ignore_eos=True
        ),
    )
    start = time.perf_counter()
    wall = queue = prefill = 0.0
    async for response in stub.Generate(request, timeout=_TIMEOUT_S):
        if response.tokens and not wall:
            wall = (time.perf_counter() - start) * 1e3
        queue, prefill = max(queue, response.queue_ms), max(prefill, response.prefill_ms)
    return EngineRun(wall, queue, prefill)


def _median(runs: list[FleetRun] | list[EngineRun], value: Callable[..., float]) -> float:
    return statistics.median(value(run) for run in runs)


def _figures(case: str, fleet: list[FleetRun], engine: list[EngineRun]) -> Iterator[Figure]:
    through = _median(fleet, lambda run: run.wall)
    alone = _median(engine, lambda run: run.wall)
    items = {
        "handoff": _median(fleet, lambda run: run.handoff),
        "queue": _median(fleet, lambda run: run.queue) - _median(engine, lambda run: run.queue),
        "prefill": _median(fleet, lambda run: run.prefill)
        - _median(engine, lambda run: run.prefill),
    }
    items["router and gRPC"] = through - alone - sum(items.values())
    yield Figure("ttft", f"{case}, four services", through, "ms", alone, alone / through)
    yield Figure("ttft", f"{case}, difference", through - alone, "ms")
    # A first token of an engine by itself, and of one that hands the prompt to another.
    prefill = _median(engine, lambda run: run.prefill)
    handed_off = _median(fleet, lambda run: run.prefill + run.handoff)
    yield Figure(
        "ttft",
        f"{case}, prefill and handoff",
        handed_off,
        "ms",
        prefill,
        prefill / handed_off,
        against="the same prefill without",
        wanted=0.99,
    )
    for name, value in items.items():
        yield Figure("ttft", f"{case}, of it {name}", value, "ms")
