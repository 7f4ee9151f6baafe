"""Time without engines, for tests of the loop and of the network alone."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar, cast

import grpc

from crossdock.rpc.surroundings import Surroundings
from tests.sim.network import Network
from tests.sim.rpc_client import WINDOW_MESSAGES, Channel
from tests.sim.rpc_server import Server
from tests.sim.virtual_loop import Process, VirtualLoop

T = TypeVar("T")


class BareClock:
    """Implements virtual_loop.Clock."""

    def __init__(self) -> None:
        self.now_ns = 0

    def next_ns(self) -> int | None:
        return None

    def advance(self, until_ns: int) -> bool:
        self.now_ns = until_ns
        return False


class BareWorld:
    """A loop, a network, and processes on them."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop(BareClock())
        self.network = Network(self.loop, Random(seed))
        self.errors: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))

    def process(self, name: str, host: str = "") -> Process:
        return Process(name, host or name, self.loop)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self.loop.run_until_complete(work())
        finally:
            for process in self.loop.processes:
                process.kill()
                process.bury()
            self.loop.close()
            assert not self.errors

    def surroundings(self) -> Surroundings:
        return Surroundings(
            open_channel=lambda address: cast(grpc.aio.Channel, Channel(self.network, address)),
            make_server=lambda **options: cast(
                grpc.aio.Server, Server(self.network, WINDOW_MESSAGES, **options)
            ),
            random=Random(1),
        )
