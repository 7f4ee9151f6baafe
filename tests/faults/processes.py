"""The processes of a fleet under faults: named, stopped, killed, started again on their address."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import grpc

from crossdock.api.v1 import decode_pb2_grpc, kv_pb2, kvstore_pb2_grpc, prefill_pb2_grpc
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import Role
from crossdock.cli.fleet_record import ServiceRecord
from crossdock.cli.process_identity import ProcessIdentity
from crossdock.cli.service_process import ServiceProcess

Part = Literal["front", "engine"]

# A front imports and starts an engine of a tiny model, on a machine that is busy with others.
START_MAX_S: Final = 60.0
_KILLED_MAX_S: Final = 20.0
_POLL_S: Final = 0.005

_STUBS: Final = {
    "prefill": prefill_pb2_grpc.PrefillStub,
    "decode": decode_pb2_grpc.DecodeStub,
    "kvstore": kvstore_pb2_grpc.KvStoreStub,
}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One process of a fleet, whichever process is there now."""

    instance_id: str
    part: Part = "front"

    @property
    def role(self) -> Role:
        role: Role = self.instance_id.rpartition("-")[0] or self.instance_id  # type: ignore[assignment]
        return role

    def __str__(self) -> str:
        return f"{self.instance_id} {self.part}" if self.role in ENGINE_ROLES else self.instance_id


ENGINE_ROLES: Final = ("prefill", "decode")


class Processes:
    """Signals the processes of one fleet, and brings back what it killed. Used on one event loop;
    `close` continues what is stopped, so that the fleet can end.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._engines: dict[str, ProcessIdentity] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stopped: set[ProcessIdentity] = set()
        self._reviving = asyncio.Lock()
        self._ports: dict[str, socket.socket] = {}

    @property
    def records(self) -> list[ServiceRecord]:
        assert self.fleet.record is not None
        return list(self.fleet.record.services)

    def record(self, instance_id: str) -> ServiceRecord:
        return next(r for r in self.records if r.instance_id == instance_id)

    def places(self) -> list[Place]:
        """Every process, fronts and engines."""
        found = [Place(record.instance_id) for record in self.records]
        found += [Place(r.instance_id, "engine") for r in self.records if r.role in ENGINE_ROLES]
        return sorted(found)

    def engine_ids(self) -> list[str]:
        return [r.instance_id for r in self.records if r.role in ENGINE_ROLES]

    async def status(self, instance_id: str, timeout_s: float = 10.0) -> kv_pb2.InstanceStatus:
        """What the instance says of itself; notes which process its engine is."""
        record = self.record(instance_id)
        channel = self._channels.get(instance_id)
        if channel is None:
            # A restarted instance is met again at once, not after gRPC's second and more.
            options = [
                ("grpc.max_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 20),
            ]
            channel = grpc.aio.insecure_channel(record.address, options=options)
            self._channels[instance_id] = channel
        stub = _STUBS[record.role](channel)
        status: kv_pb2.InstanceStatus = await stub.GetStatus(
            kv_pb2.InstanceRequest(), timeout=timeout_s
        )
        if status.engine_pid:
            identity = ProcessIdentity.of(status.engine_pid)
            if identity is not None:
                self._engines[instance_id] = identity
        return status

    async def counters(self, instance_id: str) -> dict[str, int]:
        return {c.name: c.value for c in (await self.status(instance_id)).counters}

    async def note_engines(self) -> None:
        """Learns the engines' processes, while every front answers."""
        for instance_id in self.engine_ids():
            await self.status(instance_id)

    def identity(self, place: Place) -> ProcessIdentity:
        """The process that is there now."""
        if place.part == "engine":
            return self._engines[place.instance_id]
        return self.record(place.instance_id).process

    async def kill(self, place: Place) -> None:
        """Returns once it has ended, which a busy machine may take a while for."""
        identity = self.identity(place)
        # Another kill's `revive` may put the next one in its place before this looks again.
        child = self._child(place.instance_id)
        identity.send(signal.SIGKILL)
        deadline_s = time.monotonic() + _KILLED_MAX_S
        # The first thread of a process may end seconds before the last one does.
        while place.part == "front" and child.exit_code is None:
            assert time.monotonic() < deadline_s, f"{place} does not end"
            await asyncio.sleep(_POLL_S)
        assert await asyncio.to_thread(identity.wait, _KILLED_MAX_S), f"{place} does not end"

    def _child(self, instance_id: str) -> ServiceProcess:
        return next(p for p in self.fleet.processes if p.spec.instance_id == instance_id)

    def stop(self, place: Place) -> ProcessIdentity:
        identity = self.identity(place)
        self._stopped.add(identity)
        identity.send(signal.SIGSTOP)
        return identity

    def resume(self, identity: ProcessIdentity) -> None:
        self._stopped.discard(identity)
        identity.send(signal.SIGCONT)

    async def revive(self) -> None:
        """Starts every front that has ended again, at the address where it was. Whoever calls it
        while another does returns after that one, to which its own may have fallen.
        """
        async with self._reviving:
            await self._revive()

    async def _revive(self) -> None:
        waiting = []
        for process in list(self.fleet.processes):
            if process.exit_code is None:
                continue
            record = self.record(process.spec.instance_id)
            waiting.append((record, self._start_again(process, record)))
        deadline_s = time.monotonic() + START_MAX_S
        for record, process in waiting:
            while (ready := process.read_ready()) is None:
                assert time.monotonic() < deadline_s, process.last_log_lines()
                await asyncio.sleep(_POLL_S)
            assert ready.address == record.address
            assert self.fleet.record is not None
            others = tuple(r for r in self.fleet.record.services if r is not record)
            self.fleet.record = replace(self.fleet.record, services=(*others, ready))

    def _start_again(self, dead: ServiceProcess, record: ServiceRecord) -> ServiceProcess:
        directory = Path(tempfile.mkdtemp(prefix="again-", dir=self.fleet.directory))
        port = record.address.rpartition(":")[2]
        self._keep(record.address)
        program = list(dead.spec.program)
        program[program.index("--port") + 1] = port
        started = ServiceProcess(replace(dead.spec, program=tuple(program)), directory)
        self.fleet.processes[self.fleet.processes.index(dead)] = started
        return started

    def _keep(self, address: str) -> None:
        """Nobody gets the port by chance until the front, which wants it and no other, is back."""
        if address in self._ports:
            return
        host, _, port = address.rpartition(":")
        held = socket.socket()
        # Who names a port may share it with one that does not listen; who asks for any may not.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, int(port)))
        self._ports[address] = held

    async def close(self) -> None:
        for identity in list(self._stopped):
            self.resume(identity)
        for held in self._ports.values():
            held.close()
        self._ports.clear()
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


def num_descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def children_of(pid: int) -> list[int]:
    """Processes whose parent it is, zombies included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = text[text.rindex(")") + 1 :].split()
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def shared_memory_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}
