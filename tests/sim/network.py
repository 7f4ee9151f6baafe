"""The network under gRPC: connections between simulated processes, as TCP and HTTP/2 have them.

A connection delivers in order, each way, after a delay drawn from the seed. What is sent into a
partition is sent again once it heals. A process that dies closes its connections, which the other
side learns unless it is partitioned; then, and of a process that is stopped, it learns by the
keepalive that every channel of crossdock has. A delivery is a callback of the receiving process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from crossdock.rpc import limits
from tests.sim.virtual_loop import Process, State, VirtualLoop

KEEPALIVE_S = limits.KEEPALIVE_TIME_MS / 1e3
KEEPALIVE_TIMEOUT_S = limits.KEEPALIVE_TIMEOUT_MS / 1e3
_RETRANSMIT_S = 0.2


class Listener(Protocol):
    """A bound port."""

    process: Process

    def accept(self, connection: Connection) -> Side:
        """The server's side of a new connection."""


class Side(Protocol):
    """One end of a connection."""

    def connection_lost(self, why: str) -> None: ...

    @property
    def busy(self) -> bool:
        """Whether calls are live, which keepalive asks."""


@dataclass
class Conditions:
    """Of every path. Times in seconds."""

    delay_min_s: float = 0.000_05
    delay_max_s: float = 0.000_5


@dataclass
class Counts:
    """What happened on this network."""

    connections: int = 0
    messages: int = 0
    resets: int = 0
    keepalive_timeouts: int = 0


@dataclass
class _End:
    """One end, and what is on its way to it."""

    process: Process
    side: Side | None = None
    last_s: float = 0.0
    held: list[tuple[Callable[..., object], tuple[object, ...]]] = field(default_factory=list)
    lost: bool = False


class Network:
    """All connections of one world."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.conditions = Conditions()
        self.counts = Counts()
        self._listeners: dict[str, Listener] = {}
        self._connections: list[Connection] = []
        self._cut: set[frozenset[str]] = set()

    def listen(self, address: str, listener: Listener) -> bool:
        """False when the address is in use."""
        bound = self._listeners.get(address)
        if bound is not None and bound.process.alive:
            return False
        self._listeners[address] = listener
        return True

    def close_port(self, address: str, listener: Listener) -> None:
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def listener(self, address: str) -> Listener | None:
        listener = self._listeners.get(address)
        return listener if listener is not None and listener.process.alive else None

    def host_of(self, address: str) -> str:
        """Addresses are `host:port`; hosts are names."""
        return address.rpartition(":")[0]

    def reaches(self, a: str, b: str) -> bool:
        return frozenset((a, b)) not in self._cut or a == b

    def partition(self, a: str, b: str) -> None:
        self._cut.add(frozenset((a, b)))

    def heal(self, a: str, b: str) -> None:
        self._cut.discard(frozenset((a, b)))
        for connection in list(self._connections):
            connection.release_held()

    def delay_s(self) -> float:
        conditions = self.conditions
        return self.random.uniform(conditions.delay_min_s, conditions.delay_max_s)

    def connect(self, client: Process, client_side: Side, listener: Listener) -> Connection:
        """A connection whose handshake just reached the server."""
        connection = Connection(self, client, listener.process)
        connection.client.side = client_side
        connection.server.side = listener.accept(connection)
        self._connections.append(connection)
        self.counts.connections += 1
        return connection

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)

    def reset_one(self, of: Process) -> bool:
        """Breaks one of its connections, as a middlebox does. False when it has none."""
        own = [c for c in self._connections if c.whole and of in c.processes]
        if not own:
            return False
        self.random.choice(own).reset()
        return True


class Connection:
    """Between two processes; either end may find it lost before the other does."""

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self._network = network
        self.client = _End(client)
        self.server = _End(server)
        client.on_death.append(lambda: self._died(self.client))
        server.on_death.append(lambda: self._died(self.server))
        self._ping_later(self.client)
        self._ping_later(self.server)

    @property
    def processes(self) -> tuple[Process, Process]:
        return self.client.process, self.server.process

    @property
    def whole(self) -> bool:
        return not (self.client.lost or self.server.lost)

    def to_server(self, callback: Callable[..., object], *args: object) -> None:
        self._send(self.client, self.server, callback, args)

    def to_client(self, callback: Callable[..., object], *args: object) -> None:
        self._send(self.server, self.client, callback, args)

    def close(self, end: _End) -> None:
        """One side ends it in good order; the other learns after what was sent before."""
        if end.lost:
            return
        end.lost = True
        other = self._other(end)
        self._send_anyway(other, self._lose, (other, "Connection closed by peer"))

    def reset(self) -> None:
        """Both sides find it broken, each in its own time."""
        self._network.counts.resets += 1
        for end in (self.client, self.server):
            at_s = self._network.loop.time() + self._network.delay_s()
            end.process.call_at(at_s, self._lose, end, "Connection reset by peer")

    def release_held(self) -> None:
        for end in (self.client, self.server):
            if end.held and self._open():
                held, end.held = end.held, []
                end.last_s = max(end.last_s, self._network.loop.time() + _RETRANSMIT_S)
                for callback, args in held:
                    self._send_anyway(end, callback, args)

    def _other(self, end: _End) -> _End:
        return self.server if end is self.client else self.client

    def _open(self) -> bool:
        return self._network.reaches(self.client.process.host, self.server.process.host)

    def _send(
        self, source: _End, end: _End, callback: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        if not source.lost and source.process.alive:
            self._network.counts.messages += 1
            self._send_anyway(end, callback, args)

    def _send_anyway(
        self, end: _End, callback: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        if end.lost or not end.process.alive:
            return
        if end.held or not self._open():
            end.held.append((callback, args))
            return
        network = self._network
        # Strictly later than what went before: timers of one moment have no order.
        end.last_s = max(network.loop.time() + network.delay_s(), end.last_s + 1e-7)
        end.process.call_at(end.last_s, self._deliver, end, callback, args)

    def _deliver(
        self, end: _End, callback: Callable[..., object], args: tuple[object, ...]
    ) -> None:
        if not end.lost:
            callback(*args)

    def _died(self, end: _End) -> None:
        end.lost = True
        other = self._other(end)
        self._send_anyway(other, self._lose, (other, "Socket closed"))
        if other.lost:
            self._network.forget(self)

    def _lose(self, end: _End, why: str) -> None:
        if end.lost:
            return
        end.lost = True
        end.held.clear()
        if end.side is not None:
            end.side.connection_lost(why)
        if self.client.lost and self.server.lost:
            self._network.forget(self)

    def _ping_later(self, end: _End) -> None:
        end.process.call_at(self._network.loop.time() + KEEPALIVE_S, self._ping, end)

    def _answers(self, end: _End) -> bool:
        other = self._other(end)
        return self._open() and other.process.state is State.RUNNING and not other.lost

    def _ping(self, end: _End) -> None:
        if end.lost:
            return
        if end.side is None or not end.side.busy or self._answers(end):
            self._ping_later(end)
            return
        at_s = self._network.loop.time() + KEEPALIVE_TIMEOUT_S
        end.process.call_at(at_s, self._pong_missing, end)

    def _pong_missing(self, end: _End) -> None:
        if end.lost:
            return
        if self._answers(end):
            self._ping_later(end)
            return
        self._network.counts.keepalive_timeouts += 1
        self._lose(end, "keepalive watchdog timeout")
