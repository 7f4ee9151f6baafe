"""The pairs of one engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from crossdock import _native as native
from crossdock.api.v1 import kv_pb2
from crossdock.cli.pair_table import pair_table
from crossdock.engine.lifecycle import PairState
from crossdock.engine.peers import PairTerms, PeerBook, Remote
from crossdock.engine.translation import peer_status
from crossdock.errors import CrossdockError, Reason, engine_restarted, unreachable
from crossdock.telemetry.instance import metrics_of
from tests.fakes.engine import pair_ready, peer_down

TERMS = PairTerms(incarnation=9, mac_key=b"k" * 32)


def remote(instance_id: str = "prefill-1", epoch: int = 3) -> Remote:
    return Remote(instance_id, epoch, b"descriptor", b"layout", "tiny", 4_096)


class Book:
    """A peer book, and what it sent."""

    def __init__(self) -> None:
        self.sent: list[native.Command] = []
        self.peers = PeerBook(self.sent.append)

    def connected(self, peer_id: int) -> None:
        self.peers.on_event(pair_ready(peer_id, "tcp"))

    def down(self, peer_id: int, *, closed: bool, code: int = 14) -> None:
        self.peers.on_event(peer_down(peer_id, closed=closed, code=code, message="layouts differ"))

    def num_sent(self, kind: type) -> int:
        return sum(isinstance(command, kind) for command in self.sent)


def test_the_key_of_a_pair_is_in_no_text() -> None:
    assert "kk" not in repr(TERMS)


@pytest.fixture
async def book() -> Book:
    return Book()


async def test_connecting_tells_the_engine_all_it_needs(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS, store=True)
    command: Any = book.sent[0]
    assert book.num_sent(native.ConnectPeer) == 1
    assert (command.peer_id, command.epoch, command.incarnation, command.store) == (
        pair.peer_id,
        3,
        9,
        True,
    )
    assert (command.mac_key, command.descriptor, command.layout) == (
        TERMS.mac_key,
        b"descriptor",
        b"layout",
    )


async def test_a_pair_is_ready_once_the_engine_says_so(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS)
    waiting = asyncio.create_task(pair.wait_ready(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    book.connected(pair.peer_id)
    await waiting
    assert (pair.ready, pair.transport, pair.state_name) == (True, "tcp", "ready")


async def test_waiting_for_ready_is_bounded(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS)
    with pytest.raises(CrossdockError, match="did not answer") as raised:
        await pair.wait_ready(0.01)
    assert raised.value.reason == Reason.UNREACHABLE


@pytest.mark.parametrize("num_turns", range(4))
async def test_a_cancellation_beside_the_answer_is_not_lost(book: Book, num_turns: int) -> None:
    """Whoever has not got the answer yet is cancelled, in whichever turn of the loop."""
    pair = book.peers.connect(remote(), TERMS)
    waiting = asyncio.create_task(pair.wait_ready(10))
    await asyncio.sleep(0.01)
    book.connected(pair.peer_id)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    accepted = waiting.cancel()  # False: it was done before
    await asyncio.wait({waiting})
    assert waiting.cancelled() == accepted


async def test_a_refused_layout_names_both_sides(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS)
    book.down(pair.peer_id, closed=False, code=9)
    with pytest.raises(CrossdockError, match="prefill-1: layouts differ") as raised:
        await pair.wait_ready(10)
    assert raised.value.reason == Reason.LAYOUT_MISMATCH


async def test_a_broken_pair_is_closed_before_it_is_forgotten(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS)
    book.connected(pair.peer_id)
    book.down(pair.peer_id, closed=False)
    assert pair.state_name == "broken"
    assert book.num_sent(native.DisconnectPeer) == 1
    assert book.peers.with_instance("prefill-1") is pair
    book.down(pair.peer_id, closed=True)
    assert pair.state is PairState.CLOSED
    assert book.peers.with_instance("prefill-1") is None


async def test_disconnecting_twice_is_one_command(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS)
    book.peers.disconnect(pair, unreachable("stream ended"))
    book.peers.disconnect(pair, unreachable("again"))
    book.connected(pair.peer_id)  # was on its way
    assert book.num_sent(native.DisconnectPeer) == 1
    assert pair.failure().message == "stream ended"
    assert not pair.ready


async def test_a_new_pair_waits_for_the_old_one_to_close(book: Book) -> None:
    old = book.peers.connect(remote(), TERMS)
    book.connected(old.peer_id)
    waiting = asyncio.create_task(
        book.peers.wait_gone("prefill-1", unreachable("connected again"), 10)
    )
    await asyncio.sleep(0)
    assert not waiting.done()
    assert book.num_sent(native.DisconnectPeer) == 1
    book.down(old.peer_id, closed=True)
    await waiting
    new = book.peers.connect(remote(epoch=4), TERMS)
    assert new.peer_id != old.peer_id


async def test_waiting_for_the_old_pair_is_bounded(book: Book) -> None:
    book.peers.connect(remote(), TERMS)
    with pytest.raises(CrossdockError, match="not closed yet"):
        await book.peers.wait_gone("prefill-1", unreachable("again"), 0.01)


async def test_ready_with_waits_for_the_named_epoch(book: Book) -> None:
    waiting = asyncio.create_task(book.peers.ready_with("prefill-1", 4, 10))
    old = book.peers.connect(remote(epoch=3), TERMS)
    book.connected(old.peer_id)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    book.down(old.peer_id, closed=True)
    new = book.peers.connect(remote(epoch=4), TERMS)
    book.connected(new.peer_id)
    assert await waiting is new


async def test_ready_with_ends_at_once_for_an_engine_that_was_replaced(book: Book) -> None:
    former = book.peers.connect(remote(epoch=3), TERMS)
    book.down(former.peer_id, closed=True)
    book.peers.connect(remote(epoch=4), TERMS)
    with pytest.raises(CrossdockError) as refused:
        await book.peers.ready_with("prefill-1", 3, 10)
    assert refused.value.reason == Reason.STALE_EPOCH


async def test_ready_with_ends_when_another_engine_connects(book: Book) -> None:
    waiting = asyncio.create_task(book.peers.ready_with("prefill-1", 3, 10))
    await asyncio.sleep(0)
    book.peers.connect(remote(epoch=4), TERMS)
    with pytest.raises(CrossdockError) as refused:
        await waiting
    assert refused.value.reason == Reason.STALE_EPOCH


async def test_ready_with_waits_for_an_engine_that_is_about_to_connect(book: Book) -> None:
    old = book.peers.connect(remote(epoch=3), TERMS)
    book.connected(old.peer_id)
    waiting = asyncio.create_task(book.peers.ready_with("prefill-1", 4, 10))
    await asyncio.sleep(0)
    book.down(old.peer_id, closed=True)
    new = book.peers.connect(remote(epoch=4), TERMS)
    book.connected(new.peer_id)
    assert await waiting is new


async def test_ready_with_is_bounded(book: Book) -> None:
    with pytest.raises(CrossdockError, match="did not connect within"):
        await book.peers.ready_with("prefill-1", 3, 0.01)


async def test_the_engines_end_closes_all_and_lets_nobody_wait(book: Book) -> None:
    pairs = [book.peers.connect(remote(f"prefill-{i}"), TERMS) for i in range(3)]
    ready = asyncio.create_task(pairs[0].wait_ready(10))
    target = asyncio.create_task(book.peers.ready_with("decode-9", 1, 10))
    await asyncio.sleep(0)
    book.peers.fail_all(engine_restarted("the engine ended"))
    for task in (ready, target):
        with pytest.raises(CrossdockError) as raised:
            await task
        assert raised.value.reason == Reason.ENGINE_RESTARTED
    assert {pair.state for pair in pairs} == {PairState.CLOSED}
    with pytest.raises(CrossdockError):
        book.peers.connect(remote(), TERMS)


@pytest.mark.parametrize(
    ("staged", "level"),
    [
        ("", "info"),
        ("here: UCX took another transport than rc for one-sided operations", "warning"),
    ],
)
async def test_how_a_pair_travels_is_said_aloud(book: Book, staged: str, level: str) -> None:
    pair = book.peers.connect(remote(), TERMS)
    with structlog.testing.capture_logs() as logs:
        book.peers.on_event(pair_ready(pair.peer_id, "rc", staged))
    told = [(log["log_level"], log["event"], log["transport"], log["staged"]) for log in logs]
    assert told == [(level, "pair_ready", "rc", staged)]
    status = kv_pb2.InstanceStatus(role="decode", peers=[peer_status(pair)])
    (pairs,) = (metric for metric in metrics_of(status) if metric.name == "crossdock_pairs")
    labels = {"state": "ready", "transport": "rc", "staged": "true" if staged else "false"}
    assert [sample.labels for sample in pairs.samples if sample.value == 1] == [labels]
    console = Console(width=200)
    with console.capture() as shown:
        fields: dict[str, Any] = MessageToDict(
            status,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        console.print(pair_table([{"instance_id": "decode-0", "status": fields}]))
    assert ("staged" in shown.get()) is bool(staged)
    assert staged in shown.get()


async def test_events_of_a_forgotten_pair_are_ignored(book: Book) -> None:
    pair = book.peers.connect(remote(), TERMS)
    book.down(pair.peer_id, closed=True)
    book.connected(pair.peer_id)
    book.down(pair.peer_id, closed=True)
    assert pair.state is PairState.CLOSED
