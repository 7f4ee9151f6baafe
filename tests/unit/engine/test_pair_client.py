"""The caller's side of a pair, against a kvstore."""

from __future__ import annotations

from crossdock.api.v1 import kvstore_pb2_grpc
from crossdock.engine.client import Engine
from crossdock.engine.pair_client import Callee, PairDialer
from tests.fakes.engine import FakeEngine
from tests.fakes.kvstore import running_store


async def test_a_dialer_that_closes_at_once_ends_the_pair() -> None:
    fake = FakeEngine(5)
    engine = Engine(fake, fake)
    await engine.wait_ready(10)
    async with running_store() as kvstore:
        dialer = PairDialer("prefill-1")
        callee = Callee(kvstore_pb2_grpc.KvStoreStub, kvstore.address, store=True)
        dialed = await dialer.dial(engine, callee)
        await dialer.close()
        assert not dialed.pair.usable
        await kvstore.until(lambda: kvstore.segment.disconnected == [1])
    await engine.shut_down()
