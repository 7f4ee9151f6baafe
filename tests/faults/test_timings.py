"""How soon the survivors know, how soon the router tries again, and that others notice nothing."""

from __future__ import annotations

import asyncio
import functools
import signal
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import grpc
import pytest

from crossdock.api.v1 import decode_pb2, decode_pb2_grpc
from crossdock.cli.fleet import Fleet
from crossdock.errors import Reason
from crossdock.rpc.status import from_rpc_error
from tests.e2e.caller import Answer, Caller, retries, router_address, sampling
from tests.faults.cells import serves, until_clean
from tests.faults.load import NUM_RUNNING, Bank, Outcomes, ask_once, options
from tests.faults.processes import Place, Processes
from tests.faults.summary import SUMMARY
from tests.faults.witness import BUSY_MAX_S, Witness, keeps

KNOWN_MAX_S: Final = 1.0
STALL_MAX_S: Final = 1.0
_POLL_S: Final = 0.01
# Sixteen callers ask several times meanwhile, and it is the one with the least to do.
_HELD_S: Final = 1.0
_PAIRED_MAX_S: Final = 60.0
_LONG_TOKENS: Final = 600


@asynccontextmanager
async def load(fleet: Fleet, bank: Bank, random: Random) -> AsyncIterator[Outcomes]:
    """Keeps requests running; at the end each has ended well."""
    outcomes = Outcomes()
    over = asyncio.Event()

    async def call(caller: Caller) -> None:
        while not over.is_set():
            await ask_once(caller, bank, random.choice(bank.asks), outcomes)

    async with Caller(router_address(fleet)) as caller:
        callers = [asyncio.create_task(call(caller)) for _ in range(NUM_RUNNING)]
        try:
            yield outcomes
        finally:
            over.set()
            await asyncio.gather(*callers)
    assert not outcomes.unexpected(), outcomes.unexpected()


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float) -> float:
    """The moment at which it became true."""
    while not await condition():
        assert time.monotonic() < deadline_s, "it never became true"
        await asyncio.sleep(_POLL_S)
    return time.monotonic()


async def is_paired(processes: Processes, instance_id: str, epoch: int) -> bool:
    """Whether an instance has a working pair with the engine of that epoch."""
    status = await processes.status(instance_id)
    return any(peer.epoch == epoch and peer.state == "ready" for peer in status.peers)


PLACES: Final = [
    Place(f"{role}-0", part) for role in ("prefill", "decode") for part in ("engine", "front")
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_death_is_known_and_answered_within_a_second(
    place: Place,
    transport: str,
    fault_model: Path,
    bank: Bank,
    fault_seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    wanted = options(fault_model, transport, num_instances=2)
    random = Random(fault_seed)

    async def run(fleet: Fleet) -> None:
        await keeps(KNOWN_MAX_S, lambda: _death(fleet, bank, random, place))

    with Fleet(wanted, tmp_path_factory.mktemp("fleet")) as fleet:
        asyncio.run(run(fleet))


async def _death(fleet: Fleet, bank: Bank, random: Random, place: Place) -> tuple[float, float]:
    """Seconds until the last of the survivors has done its part, and the witness'."""
    processes = Processes(fleet)
    others = ["decode-0", "decode-1"] if place.role == "prefill" else ["prefill-0", "prefill-1"]
    try:
        await processes.note_engines()
        epoch = (await processes.status(place.instance_id)).epoch
        async with load(fleet, bank, random):
            for other in others:
                paired = functools.partial(is_paired, processes, other, epoch)
                await until(paired, time.monotonic() + _PAIRED_MAX_S)
            with Witness() as witness:
                times = await _kill(processes, place, epoch, others)
            await processes.kill(place)  # waits for its end
            await processes.revive()
        await until_clean(processes)
        await _meets_new_keys(processes, place, epoch)
        await serves(fleet, bank, random)
    finally:
        await processes.close()
    told = ", ".join(f"{s * 1e3:.0f}" for s in times[:-1])
    line = f"kill of {place} over {fleet.options.transport}: known after {told} ms, "
    SUMMARY.lines.append(line + f"a new attempt after {times[-1] * 1e3:.0f} ms")
    return max(times), witness.stood_s


async def _kill(processes: Processes, place: Place, epoch: int, others: list[str]) -> list[float]:
    """Seconds until each of the others has no pair with the dead, and until the router retries."""
    router = processes.record("router")
    # Prompts are short: without this it may die when it has nobody's, and nobody tries again.
    identity = processes.stop(place)
    await asyncio.sleep(_HELD_S)
    before = await asyncio.to_thread(retries, router)
    identity.send(signal.SIGKILL)
    killed_s = time.monotonic()

    async def is_parted(other: str) -> bool:
        return not await is_paired(processes, other, epoch)

    async def has_retried() -> bool:
        return await asyncio.to_thread(retries, router) > before

    events: list[Callable[[], Awaitable[bool]]]
    events = [*(functools.partial(is_parted, other) for other in others), has_retried]
    ends = [until(event, killed_s + BUSY_MAX_S) for event in events]
    return [end_s - killed_s for end_s in await asyncio.gather(*ends)]


async def _meets_new_keys(processes: Processes, place: Place, epoch: int) -> None:
    """The instance is back on its address as another epoch, and nobody takes it for the old one."""
    status = await processes.status(place.instance_id)
    assert status.epoch not in (0, epoch)
    if place.role != "prefill":
        return
    decode = processes.record("decode-0")
    request = decode_pb2.DecodeRequest(
        request_id=uuid.uuid4().hex,
        handoff_id=uuid.uuid4().bytes,
        attempt=1,
        token_ids=[5] * 40,
        sampling=decode_pb2.TokenSampling(temperature=0.0, top_p=1.0, max_tokens=4),
        source_instance_id=place.instance_id,
        source_address=processes.record(place.instance_id).address,
        source_epoch=epoch,
        tenant_salt=b"late",
    )
    async with grpc.aio.insecure_channel(decode.address) as channel:
        call = decode_pb2_grpc.DecodeStub(channel).Generate(request, timeout=20.0)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert from_rpc_error(refused.value).reason == Reason.STALE_EPOCH


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_broken_pair_recovers_alone(
    role: str,
    fault_model: Path,
    fault_seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Streams of the healthy instances go on while an engine beside them dies and comes back."""
    wanted = options(fault_model, "shm", num_instances=2)
    random = Random(fault_seed)

    async def run(fleet: Fleet) -> None:
        await keeps(STALL_MAX_S, lambda: _bystanders(fleet, random, Place(f"{role}-0", "engine")))

    with Fleet(wanted, tmp_path_factory.mktemp("fleet")) as fleet:
        asyncio.run(run(fleet))


async def _bystanders(fleet: Fleet, random: Random, place: Place) -> tuple[float, float]:
    """The longest that a stream of the healthy was without a token, and the witness'."""
    processes = Processes(fleet)
    prompts = [[random.randrange(3, 512) for _ in range(40)] for _ in range(NUM_RUNNING // 2)]
    params = [sampling(_LONG_TOKENS) for _ in prompts]
    try:
        await processes.note_engines()
        async with Caller(router_address(fleet)) as caller:
            expected = await caller.generate_all(prompts, params)
            clocks = [Clock() for _ in prompts]
            streams = [
                asyncio.create_task(
                    caller.generate(prompt, sampling(_LONG_TOKENS), on_message=clock.tick)
                )
                for prompt, clock in zip(prompts, clocks, strict=True)
            ]
            await asyncio.gather(*(clock.ticking.wait() for clock in clocks))
            with Witness() as witness:
                await processes.kill(place)
                answers = await asyncio.gather(*streams)
        await until_clean(processes)
    finally:
        await processes.close()
    assert [a.same for a in answers] == [a.same for a in expected]
    alone = [c.gap_max_s for c, a in zip(clocks, answers, strict=True) if _attempts(a) == 1]
    assert alone, "no stream was a bystander"
    SUMMARY.lines.append(
        f"kill of {place}: {len(alone)} of {len(answers)} streams went on in their first attempt, "
        f"without a token for {max(alone) * 1e3:.0f} ms at most"
    )
    return max(alone), witness.stood_s


class Clock:
    """The longest time between two messages of a stream."""

    def __init__(self) -> None:
        self.num_messages = 0
        self.gap_max_s = 0.0
        self.ticking = asyncio.Event()  # beyond the first token
        self._last_s = 0.0

    def tick(self, _answer: Answer) -> None:
        now_s = time.monotonic()
        if self.num_messages:
            self.gap_max_s = max(self.gap_max_s, now_s - self._last_s)
            self.ticking.set()
        self.num_messages += 1
        self._last_s = now_s


def _attempts(answer: Answer) -> int:
    assert answer.finish is not None
    return answer.finish.timings.attempts
