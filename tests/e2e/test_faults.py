"""Requests that are cancelled at any moment of their life, processes that are told to go, and
fleets that idle: nothing leaks. tests/faults has the rest.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions, Role
from crossdock.cli.fleet_record import ServiceRecord
from tests.conftest import KV_MEMORY, StartFleet
from tests.e2e.caller import (
    Answer,
    Caller,
    engines,
    router_address,
    sampling,
    services,
    status_of,
    wait_until_clean,
)
from tests.tiny_models.directory import TinyModel, write_tiny_model

PROMPT = [(7 * i + 3) % 256 for i in range(600)]


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough that every stage of a request lasts some milliseconds."""
    shape = TinyModel(num_layers=8, hidden=256, intermediate=768, num_heads=4, head_dim=64)
    return write_tiny_model(tmp_path_factory.mktemp("models") / "slow", shape)


def small_chunks(model: Path, instance_wait_s: int = 30) -> FleetOptions:
    """Prompts take several steps, so that faults meet handoffs in every state."""
    engine = ["--token-budget", "128", "--verify-handoff"]
    arguments: dict[Role, list[str]] = {
        "prefill": engine,
        "decode": engine,
        # How long a request waits for an instance that is away: until a killed engine is back, but
        # not for one that drains.
        "router": ["--instance-wait", str(instance_wait_s)],
    }
    return FleetOptions(model, kv_memory=KV_MEMORY, arguments=arguments)


def counter(service: ServiceRecord, name: str) -> int:
    return next(c.value for c in status_of(service).counters if c.name == name)


async def outcome(caller: Caller, prompt: list[int], max_tokens: int) -> Answer | grpc.StatusCode:
    """How one request ended."""
    try:
        return await caller.generate(prompt, sampling(max_tokens))
    except grpc.aio.AioRpcError as error:
        return error.code()


def test_cancelled_requests_leave_nothing_reserved(
    slow_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(small_chunks(slow_model))

    async def run() -> int:
        async with Caller(router_address(fleet)) as caller:
            begin_s = time.monotonic()
            expected = await caller.generate(PROMPT, sampling(24))
            whole_s = time.monotonic() - begin_s
            num_cancelled = 0
            # Cancels spread over the whole life of a request: before the grant, during prefill,
            # during the writes, during decode. Four at once, of different prompts.
            for step in range(24):
                prompts = [[step, index, *PROMPT] for index in range(4)]
                tasks = [
                    asyncio.create_task(caller.generate(prompt, sampling(24))) for prompt in prompts
                ]
                await asyncio.sleep(whole_s * step / 16)
                for task in tasks:
                    num_cancelled += task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            again = await caller.generate(PROMPT, sampling(24))
            assert again.same == expected.same
            return num_cancelled

    num_cancelled = asyncio.run(run())
    assert num_cancelled > 40
    wait_until_clean(fleet)
    # Cancels met the handoff in several of its states, or this test shows little.
    assert counter(services(fleet, "decode")[0], "handoff_revokes") > 0
    assert counter(services(fleet, "prefill")[0], "handoff_aborts") > 0


def engine_of(role: str) -> Callable[[Fleet], int]:
    return lambda fleet: status_of(services(fleet, role)[0]).engine_pid


def front_of(role: str) -> Callable[[Fleet], int]:
    return lambda fleet: services(fleet, role)[0].process.pid


def await_state(pid: int, states: str) -> None:
    """Until the kernel reports one of these letters; a process that is gone counts as Z."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            state = "Z"
        if state in states:
            return
        assert time.monotonic() < deadline_s, f"process {pid} is in state {state}"
        time.sleep(0.05)


@pytest.mark.parametrize("stopped", [False, True])
def test_an_engine_ends_with_its_front(
    stopped: bool, slow_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(small_chunks(slow_model))
    engine_pid = engine_of("prefill")(fleet)
    if stopped:
        os.kill(engine_pid, signal.SIGSTOP)
        await_state(engine_pid, "T")
    os.kill(front_of("prefill")(fleet), signal.SIGKILL)
    await_state(engine_pid, "Z")


# gRPC notices within 15 s, where its own bound for a ping is a minute; the rest is for the replay.
STOPPED_FRONT_MAX_S = 45.0


def test_a_front_that_stands_still_loses_its_requests(
    slow_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(FleetOptions(slow_model, num_decode=2, kv_memory=KV_MEMORY))
    prompts = [[token, 5, 7] for token in range(8)]
    params = sampling(400)

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            expected = await caller.generate_all(prompts, [params] * len(prompts))
            begun = [asyncio.Event() for _ in prompts]

            def begins(event: asyncio.Event, _answer: Answer) -> None:
                event.set()

            streams = [
                asyncio.create_task(
                    caller.generate(prompt, params, on_message=functools.partial(begins, event))
                )
                for prompt, event in zip(prompts, begun, strict=True)
            ]
            async with asyncio.timeout(60):
                await asyncio.gather(*(event.wait() for event in begun))
            front = front_of("decode")(fleet)
            os.kill(front, signal.SIGSTOP)
            try:
                async with asyncio.timeout(STOPPED_FRONT_MAX_S):
                    answers = await asyncio.gather(*streams)
            finally:
                os.kill(front, signal.SIGCONT)
            assert [answer.same for answer in answers] == [answer.same for answer in expected]
            finishes = [answer.finish for answer in answers]
            assert any(finish and finish.timings.attempts > 1 for finish in finishes)

    asyncio.run(run())
    wait_until_clean(fleet)


@pytest.mark.parametrize("role", ["router", "prefill", "decode"])
def test_sigterm_drains(role: str, slow_model: Path, start_fleet: StartFleet) -> None:
    fleet = start_fleet(small_chunks(slow_model, instance_wait_s=1))
    service = services(fleet, role)[0]
    process = next(p for p in fleet.processes if p.spec.role == role)

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            expected = await caller.generate(PROMPT, sampling(200))
            streaming = asyncio.Event()
            running = asyncio.create_task(
                caller.generate(PROMPT, sampling(200), on_message=lambda _: streaming.set())
            )
            await asyncio.wait_for(streaming.wait(), 60)
            os.kill(service.process.pid, signal.SIGTERM)
            refused = None
            while refused is None:
                late = await outcome(caller, [9, *PROMPT], 1)
                if not isinstance(late, Answer):
                    refused = late
            assert refused is grpc.StatusCode.UNAVAILABLE
            assert (await running).same == expected.same

    asyncio.run(run())
    assert process.wait(60)
    assert process.exit_code == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_fleet_sleeps(tiny_model: Path, start_fleet: StartFleet) -> None:
    fleet = start_fleet(FleetOptions(tiny_model, kv_memory=KV_MEMORY))

    async def warm_up() -> None:
        async with Caller(router_address(fleet)) as caller:
            await caller.generate(PROMPT, sampling(8))

    asyncio.run(warm_up())
    wait_until_clean(fleet)
    assert fleet.record is not None
    pids = [s.process.pid for s in fleet.record.services]
    pids += [status_of(service).engine_pid for service in engines(fleet)]
    time.sleep(2)  # What follows a request (write-back, closing channels) is not idleness.
    before = sum(map(cpu_seconds, pids))
    seconds = 10
    time.sleep(seconds)
    used = sum(map(cpu_seconds, pids)) - before
    # CPU time, which a busy machine around us does not change much: 2 % of one core.
    assert used < 0.02 * seconds, f"{len(pids)} idle processes used {used:.2f} s of {seconds} s"
