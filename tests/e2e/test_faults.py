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
    retries,
    router_address,
    sampling,
    services,
    status_of,
    wait_until_clean,
)
from tests.tiny_models.directory import TinyModel, write_tiny_model

# Engines of a model that is not tiny, on a machine that may be busy.
pytestmark = pytest.mark.timeout(400)

PROMPT = [(7 * i + 3) % 256 for i in range(600)]
CANCEL_STEPS_MAX = 200


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
    (prefill,), (decode,) = services(fleet, "prefill"), services(fleet, "decode")

    async def run() -> int:
        async with Caller(router_address(fleet)) as caller:
            await caller.generate(PROMPT, sampling(24))  # Makes the pair.
            begin_s = time.monotonic()
            expected = await caller.generate([7, *PROMPT], sampling(24))
            whole_s = time.monotonic() - begin_s
            num_cancelled = 0
            # Cancels spread over the whole life of a request: before the grant, during prefill,
            # during the writes, during decode. Four at once, of different prompts. They must meet
            # the handoff in several of its states, or this test shows little.
            for step in range(CANCEL_STEPS_MAX):
                if step >= 24 and num_cancelled > 40 and met_handoffs():
                    break
                prompts = [[step, index, *PROMPT] for index in range(4)]
                tasks = [
                    asyncio.create_task(caller.generate(prompt, sampling(24))) for prompt in prompts
                ]
                _, running = await asyncio.wait(tasks, timeout=whole_s * (step % 24) / 16)
                if not running:
                    whole_s *= 0.9  # Measured while others kept the machine busy.
                for task in tasks:
                    num_cancelled += task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            again = await caller.generate([7, *PROMPT], sampling(24))
            assert again.same == expected.same
            return num_cancelled

    def met_handoffs() -> bool:
        return counter(decode, "handoff_revokes") > 0 and counter(prefill, "handoff_aborts") > 0

    num_cancelled = asyncio.run(run())
    wait_until_clean(fleet)
    assert num_cancelled > 40
    assert met_handoffs()


def engine_of(role: str) -> Callable[[Fleet], int]:
    return lambda fleet: status_of(services(fleet, role)[0]).engine_pid


def front_of(role: str) -> Callable[[Fleet], int]:
    return lambda fleet: services(fleet, role)[0].process.pid


def await_state(pid: int, states: str) -> None:
    """Until the kernel reports one of these letters; a process that is gone counts as Z."""
    deadline_s = time.monotonic() + 60
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


# gRPC notices within 15 s, where its own bound for a ping is a minute.
STOPPED_FRONT_MAX_S = 45.0
STOP_TRIES_MAX = 20


def test_a_front_that_stands_still_loses_its_requests(
    slow_model: Path, start_fleet: StartFleet
) -> None:
    fleet = start_fleet(FleetOptions(slow_model, num_decode=2, kv_memory=KV_MEMORY))
    prompts = [[token, 5, 7] for token in range(8)]
    params = sampling(400)
    front = front_of("decode")(fleet)
    (router,) = services(fleet, "router")

    def begins(event: asyncio.Event, _answer: Answer) -> None:
        event.set()

    async def run_while_it_is_stopped(caller: Caller) -> list[Answer]:
        begun = [asyncio.Event() for _ in prompts]
        before = await asyncio.to_thread(retries, router)
        streams = [
            asyncio.create_task(
                caller.generate(prompt, params, on_message=functools.partial(begins, event))
            )
            for prompt, event in zip(prompts, begun, strict=True)
        ]
        async with asyncio.timeout(120):
            await asyncio.gather(*(event.wait() for event in begun))
        os.kill(front, signal.SIGSTOP)
        try:
            async with asyncio.timeout(STOPPED_FRONT_MAX_S):
                while not all(stream.done() for stream in streams):
                    if await asyncio.to_thread(retries, router) > before:
                        break
                    await asyncio.sleep(0.1)
            return list(await asyncio.gather(*streams))
        finally:
            os.kill(front, signal.SIGCONT)

    async def run() -> None:
        async with Caller(router_address(fleet)) as caller:
            expected = await caller.generate_all(prompts, [params] * len(prompts))
            # On a busy machine the requests may be over by the time that the front is stopped.
            for _ in range(STOP_TRIES_MAX):
                answers = await run_while_it_is_stopped(caller)
                assert [answer.same for answer in answers] == [answer.same for answer in expected]
                finishes = [answer.finish for answer in answers]
                if any(finish and finish.timings.attempts > 1 for finish in finishes):
                    return
        pytest.fail("no request ran on the front when it was stopped")

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


# The kernel counts in hundredths of a second.
IDLE_S = 8
IDLE_TRIES_MAX = 5


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
    # CPU time, which a busy machine around us changes little: 2 % of one core. What follows a
    # request (write-back, closing channels) is not idleness.
    for _ in range(IDLE_TRIES_MAX):
        before = sum(map(cpu_seconds, pids))
        time.sleep(IDLE_S)
        used = sum(map(cpu_seconds, pids)) - before
        if used < 0.02 * IDLE_S:
            return
    pytest.fail(f"{len(pids)} idle processes used {used:.2f} s of {IDLE_S} s")
