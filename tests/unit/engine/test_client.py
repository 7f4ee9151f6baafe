"""The asyncio view of one engine life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from crossdock import _native as native
from crossdock.engine.client import Engine, EngineStartError
from crossdock.engine.sequence import EngineSequence
from crossdock.errors import Code, CrossdockError, Reason
from tests.fakes.engine import (
    FakeEngine,
    ended,
    event,
    handoff_done,
    started,
    token,
    tokens,
)
from tests.fakes.requests import request


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(epoch=5)
    yield engine
    engine.close()


@pytest.fixture
async def engine(fake: FakeEngine) -> AsyncIterator[Engine]:
    engine = Engine(fake, fake)
    await engine.wait_ready(10)
    yield engine
    fake.exit(0)
    await engine.wait_down()


def _open(engine: Engine, *, local: bool = True) -> EngineSequence:
    return engine.open(lambda number: native.Generate(task=request().task(number)), local=local)


async def test_ready_gives_the_epoch(engine: Engine) -> None:
    assert engine.epoch == 5
    assert engine.ready.layout == b"layout"


async def test_a_failed_start_tells_why() -> None:
    fake = FakeEngine(1, starts=False)
    engine = Engine(fake, fake)
    fake.emit(event(native.StartFailed, code=3, message="no such model directory: /x"))
    with pytest.raises(EngineStartError, match="no such model directory: /x") as raised:
        await engine.wait_ready(10)
    assert raised.value.code is Code.INVALID_ARGUMENT
    fake.exit(1)
    await engine.wait_down()


async def test_an_engine_that_ends_before_ready_failed_to_start() -> None:
    fake = FakeEngine(1, starts=False)
    engine = Engine(fake, fake)
    fake.exit(-11)
    with pytest.raises(EngineStartError, match="signal 11"):
        await engine.wait_ready(10)


async def test_a_start_is_bounded() -> None:
    fake = FakeEngine(1, starts=False)
    engine = Engine(fake, fake)
    with pytest.raises(EngineStartError, match="did not start within"):
        await engine.wait_ready(0.02)
    await engine.wait_down()  # killed


async def test_events_reach_their_sequence_in_order(engine: Engine, fake: FakeEngine) -> None:
    first, second = _open(engine), _open(engine)
    assert first.sequence_id != second.sequence_id
    fake.emit(
        started(first.sequence_id),
        tokens(token(first.sequence_id, 3), token(second.sequence_id, 9)),
        tokens(token(first.sequence_id, 4)),
    )
    taken = await first.take()
    assert isinstance(taken[0], native.Started)
    assert [item.position for item in taken if isinstance(item, native.SequenceToken)] == [3, 4]
    other = await second.take()
    assert [item.sequence_id for item in other] == [second.sequence_id]


async def test_take_waits_for_the_next_event(engine: Engine, fake: FakeEngine) -> None:
    sequence = _open(engine)
    taking = asyncio.create_task(sequence.take())
    await asyncio.sleep(0.01)
    assert not taking.done()
    fake.emit(tokens(token(sequence.sequence_id, 3)))
    assert len(await asyncio.wait_for(taking, 10)) == 1


@pytest.mark.parametrize(
    ("code", "local", "reason"),
    [
        (Code.UNAVAILABLE, False, Reason.HANDOFF_LOST),
        (Code.RESOURCE_EXHAUSTED, False, Reason.HANDOFF_REFUSED),
        (Code.RESOURCE_EXHAUSTED, True, Reason.OVERLOADED),
        (Code.CANCELLED, True, Reason.CANCELLED),
        (Code.INTERNAL, True, Reason.INTERNAL),
    ],
)
async def test_an_ended_sequence_raises_after_its_events(
    engine: Engine, fake: FakeEngine, code: Code, local: bool, reason: Reason
) -> None:
    sequence = _open(engine, local=local)
    fake.emit(tokens(token(sequence.sequence_id, 3)), ended(sequence.sequence_id, code, "told why"))
    assert len(await sequence.take()) == 1
    with pytest.raises(CrossdockError, match="told why") as raised:
        await sequence.take()
    assert (raised.value.code, raised.value.reason) == (code, reason)


async def test_closing_a_live_sequence_cancels_it_once(engine: Engine, fake: FakeEngine) -> None:
    sequence = _open(engine)
    engine.close(sequence)
    engine.close(sequence)
    assert [command.sequence_id for command in fake.sent(native.Cancel)] == [sequence.sequence_id]
    fake.emit(tokens(token(sequence.sequence_id, 3)), ended(sequence.sequence_id, Code.CANCELLED))
    await engine.status(10)  # both were dispatched, to nobody
    assert engine.num_sequences == 0


async def test_closing_a_finished_sequence_sends_nothing(engine: Engine, fake: FakeEngine) -> None:
    finished, handed_off = _open(engine), _open(engine, local=False)
    fake.emit(
        tokens(token(finished.sequence_id, 3, native.Finish.STOP)),
        handoff_done(handed_off.sequence_id, 3),
    )
    await finished.take()
    await handed_off.take()
    engine.close(finished)
    engine.close(handed_off)
    assert not fake.sent(native.Cancel)


async def test_a_full_ring_delays_commands_in_order(engine: Engine, fake: FakeEngine) -> None:
    fake.full = True
    sequences = [_open(engine) for _ in range(3)]
    engine.close(sequences[0])
    assert not fake.commands
    fake.full = False
    await fake.next(native.Cancel)
    kinds = [type(command) for command in fake.commands]
    assert kinds == [native.Generate] * 3 + [native.Cancel]


async def test_the_queue_behind_a_full_ring_is_bounded(engine: Engine, fake: FakeEngine) -> None:
    fake.full = True
    for _ in range(1_024):
        _open(engine)
    with pytest.raises(CrossdockError) as raised:
        _open(engine)
    assert raised.value.reason == Reason.OVERLOADED
    assert engine.num_sequences == 1_024


@pytest.mark.parametrize("full", [False, True])
async def test_a_command_that_can_never_fit_is_the_callers_fault(
    engine: Engine, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    send = fake.send

    def refuse_first(command: native.Command) -> bool:
        if isinstance(command, native.Generate) and not fake.full:
            monkeypatch.setattr(fake, "send", send)
            raise ValueError("larger than the ring")
        return send(command)

    monkeypatch.setattr(fake, "send", refuse_first)
    fake.full = full
    sequence, other = _open(engine), _open(engine)
    fake.full = False
    with pytest.raises(CrossdockError, match="larger than the ring") as raised:
        async with asyncio.timeout(10):
            await sequence.take()
    assert (raised.value.code, raised.value.field) == (Code.INVALID_ARGUMENT, "token_ids")
    engine.close(sequence)
    # Whoever comes behind it is served.
    engine.close(other)
    assert (await fake.next(native.Cancel)).sequence_id == other.sequence_id
    assert len(fake.sent(native.Generate)) == 1


async def test_a_dead_engine_fails_everything_at_once(engine: Engine, fake: FakeEngine) -> None:
    sequence = _open(engine)
    fake.answers_status = False
    status = asyncio.create_task(engine.status(10))
    taking = asyncio.create_task(sequence.take())
    await asyncio.sleep(0.01)
    fake.kill()
    for task in (status, taking):
        with pytest.raises(CrossdockError) as raised:
            await asyncio.wait_for(task, 10)
        assert raised.value.reason == Reason.ENGINE_RESTARTED
    with pytest.raises(CrossdockError) as raised:
        _open(engine)
    assert raised.value.reason == Reason.ENGINE_RESTARTED


async def test_what_an_engine_said_before_it_ended_counts(engine: Engine, fake: FakeEngine) -> None:
    sequence = _open(engine)
    fake.emit(tokens(token(sequence.sequence_id, 3, native.Finish.LENGTH)))
    fake.kill()
    await engine.wait_down()
    assert len(await sequence.take()) == 1


async def test_status_queries_share_one_command(engine: Engine, fake: FakeEngine) -> None:
    reports = await asyncio.gather(*(engine.status(10) for _ in range(5)))
    assert len(fake.sent(native.QueryStatus)) == 1
    assert {report.num_steps for report in reports} == {42}


async def test_status_is_bounded(engine: Engine, fake: FakeEngine) -> None:
    fake.answers_status = False
    with pytest.raises(CrossdockError) as raised:
        await engine.status(0.02)
    assert raised.value.code is Code.DEADLINE_EXCEEDED


async def test_a_link_that_does_not_parse_ends_the_engine(
    engine: Engine, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[native.Event]:
        raise RuntimeError("bad record")

    monkeypatch.setattr(fake, "receive", broken)
    fake.emit(started(1))
    await asyncio.wait_for(engine.wait_down(), 10)


async def test_shutting_down_ends_the_process(engine: Engine, fake: FakeEngine) -> None:
    await engine.shut_down()
    assert fake.sent(native.Shutdown)
    assert engine.down
