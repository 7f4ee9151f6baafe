"""What a handoff adds to the time to first token: two routers, of which one knows no prefill.

The router with a prefill instance has each prompt computed there and handed to the decode instance;
the other has the same decode instance compute it. Engines, model and way of a request are the same
but for that, and the two take turns, request by request, so that what else the machine does meets
both. Prompts are random tokens, so that nothing is cached. Ratios are medians of the pairs'; what
the difference consists of is told by the routers' timings.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figure import Figure
from crossdock.api.v1 import inference_pb2, inference_pb2_grpc
from crossdock.cli import fleet_plan
from crossdock.cli.errors import FleetError
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.cli.service_process import ServiceProcess
from crossdock.rpc.channel import open_channel

PROMPT_TOKENS = (32, 512, 1_500)
NUM_PAIRS = 11
_TIMEOUT_S = 120.0
# Plain words of the vocabulary; special tokens come before them.
_TOKEN_IDS = (1_000, 20_000)


@dataclass(frozen=True, slots=True)
class Run:
    """One request. Times in ms; `ttft` is the caller's clock, the others the router's."""

    ttft: float
    queue: float
    prefill: float
    handoff: float


async def measure(model: Path) -> AsyncIterator[Figure]:
    """Starts a fleet and a second router, measures every prompt length, stops all of it."""
    with tempfile.TemporaryDirectory(prefix="crossdock-bench-") as folder:
        # Without a kvstore, to which prefill alone would write.
        options = FleetOptions(model_directory=model, kvstore=False, parent_pid=os.getpid())
        fleet = Fleet(options, Path(folder), name="bench")
        with fleet:
            assert fleet.record is not None
            decode = [s.address for s in fleet.record.services if s.role == "decode"]
            spec = fleet_plan.router_spec(options, [], decode)
            alone = ServiceProcess(replace(spec, instance_id="router-alone"), Path(folder))
            fleet.processes.append(alone)
            with_handoff = open_channel(fleet.record.router.address)
            without = open_channel(_address(alone))
            stubs = [inference_pb2_grpc.InferenceStub(c) for c in (with_handoff, without)]
            try:
                for num_tokens in PROMPT_TOKENS:
                    for figure in await _measure_length(stubs, num_tokens):
                        yield figure
            finally:
                await with_handoff.close(None)
                await without.close(None)


def _address(router: ServiceProcess) -> str:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while (record := router.read_ready()) is None:
        if time.monotonic() > deadline_s:
            raise FleetError(f"the second router does not serve; see {router.log}")
        time.sleep(0.02)
    return record.address


async def _measure_length(
    stubs: list[inference_pb2_grpc.InferenceAsyncStub], num_tokens: int
) -> list[Figure]:
    draw = random.Random(num_tokens)
    pairs = []
    # The first meets cold caches and makes the pair of the two engines.
    for i in range(NUM_PAIRS + 1):
        pair = [await _request(stub, _prompt(draw, num_tokens)) for stub in stubs]
        if i > 0:
            pairs.append((pair[0], pair[1]))
    return list(_figures(f"{num_tokens} tokens", pairs))


def _prompt(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(*_TOKEN_IDS) for _ in range(num_tokens)]


async def _request(stub: inference_pb2_grpc.InferenceAsyncStub, prompt: list[int]) -> Run:
    request = inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=inference_pb2.SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True),
    )
    start = time.perf_counter()
    ttft = 0.0
    timings = inference_pb2.Timings()
    async for response in stub.Generate(request, timeout=_TIMEOUT_S):
        if response.token_ids and not ttft:
            ttft = (time.perf_counter() - start) * 1e3
        if response.HasField("finish"):
            timings = response.finish.timings
    return Run(ttft, timings.queue_ms, timings.prefill_ms, timings.handoff_ms)


def _figures(case: str, pairs: list[tuple[Run, Run]]) -> Iterator[Figure]:
    """Of pairs (with a handoff, without)."""
    yield Figure(
        "ttft",
        f"{case}, with a handoff",
        statistics.median(a.ttft for a, _ in pairs),
        "ms",
        statistics.median(b.ttft for _, b in pairs),
        statistics.median(b.ttft / a.ttft for a, b in pairs),
        against="the same without",
        wanted=0.99,
    )
    parts = {
        "handoff": statistics.median(a.handoff for a, _ in pairs),
        "queue": statistics.median(a.queue - b.queue for a, b in pairs),
        "prefill": statistics.median(a.prefill - b.prefill for a, b in pairs),
    }
    difference = statistics.median(a.ttft - b.ttft for a, b in pairs)
    yield Figure("ttft", f"{case}, difference", difference, "ms")
    for name, value in {**parts, "other": difference - sum(parts.values())}.items():
        yield Figure("ttft", f"{case}, of it {name}", value, "ms")
