"""A fleet of real service processes on this host, for the command line and for tests.

Life of a fleet:
1. `start` makes the run directory, then starts the kvstore, the workers together, the router,
   each stage once the one before it serves. A service that dies or is late fails the whole.
2. While it runs, `first_death` tells when a service has ended by itself.
3. `stop` sends SIGTERM to the router, which finishes its streams, then to the rest; what still
   runs after its time gets SIGKILL. Only processes of this fleet are ever signalled.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from crossdock.cli import fleet_plan, fleet_record
from crossdock.cli.errors import FleetError
from crossdock.cli.fleet_plan import FleetOptions, ServiceSpec
from crossdock.cli.fleet_record import FleetRecord, ServiceRecord
from crossdock.cli.process_identity import ProcessIdentity
from crossdock.cli.service_process import ServiceProcess

# Loading a model of a few gigabytes from a cold disk, on a loaded machine.
START_TIMEOUT_S = 180.0
# A service drains for 30 s at most; what is left then is not going to end by itself.
STOP_TIMEOUT_S = 40.0
_POLL_S = 0.02

# Called as each service serves: its record, and the seconds since its start.
OnReady = Callable[[ServiceRecord, float], None]

T = TypeVar("T")


class Fleet:
    """Starts and stops service processes. Used from one thread; a context manager."""

    def __init__(
        self,
        options: FleetOptions,
        directory: Path,
        *,
        name: str = fleet_record.DEFAULT_NAME,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.options = options
        self.directory = directory
        self.name = name
        self.processes: list[ServiceProcess] = []
        self.record: FleetRecord | None = None
        self._environ = environ

    def start(self, on_ready: OnReady | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns once every service serves; on any failure, nothing is left running."""
        deadline_s = time.monotonic() + timeout_s
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FleetError(f"another `crossdock up` is starting {self.name!r}") from None
            existing = fleet_record.load(self.directory)
            if existing is not None and existing.is_alive():
                raise FleetError(
                    f"fleet {self.name!r} is running: stop it with `crossdock down --name "
                    f"{self.name}`, or give this one another --name"
                )
            try:
                services = self._start_all(on_ready or (lambda _record, _s: None), deadline_s)
            except BaseException:
                self.stop()
                raise
            self.record = FleetRecord(self.name, self.options.model_directory, tuple(services))
            fleet_record.save(self.record, self.directory)

    def first_death(self) -> ServiceProcess | None:
        """A service that has ended, though nobody stopped it."""
        return next((p for p in self.processes if p.exit_code is not None), None)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """Drains and ends every process; the ids of those that had to be killed."""
        stages = _stages([(p.spec.role == "router", p) for p in self.processes])
        killed = []
        for stage in stages:
            killed += _stop_stage({p.spec.instance_id: p.identity for p in stage}, timeout_s)
            for process in stage:
                process.wait(timeout_s)
        fleet_record.remove(self.directory)
        return killed

    def __enter__(self) -> Self:
        if self.record is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start_all(self, on_ready: OnReady, deadline_s: float) -> list[ServiceRecord]:
        options = self.options
        stores = self._start_stage(fleet_plan.kvstore_specs(options), on_ready, deadline_s)
        address = stores[0].address if stores else None
        num_cores = len(os.sched_getaffinity(0))
        workers = self._start_stage(
            fleet_plan.worker_specs(options, num_cores, address), on_ready, deadline_s
        )
        spec = fleet_plan.router_spec(
            options,
            [worker.address for worker in workers if worker.role == "prefill"],
            [worker.address for worker in workers if worker.role == "decode"],
        )
        routers = self._start_stage([spec], on_ready, deadline_s)
        return [*routers, *workers, *stores]

    def _start_stage(
        self, specs: Sequence[ServiceSpec], on_ready: OnReady, deadline_s: float
    ) -> list[ServiceRecord]:
        waiting = [ServiceProcess(spec, self.directory, self._environ) for spec in specs]
        self.processes += waiting
        ready: dict[str, ServiceRecord] = {}
        while True:
            for process in self.processes:
                if process in waiting and (record := process.read_ready()) is not None:
                    waiting.remove(process)
                    ready[record.instance_id] = record
                    on_ready(record, time.monotonic() - process.started_s)
            if not waiting:
                return [ready[spec.instance_id] for spec in specs]
            if (dead := self.first_death()) is not None:
                raise FleetError(dead.describe_death())
            if time.monotonic() > deadline_s:
                late = waiting[0]
                raise FleetError(
                    f"{late.spec.instance_id} does not serve after "
                    f"{time.monotonic() - late.started_s:.0f} s; the end of {late.log}:\n"
                    + "\n".join(f"  {line}" for line in late.last_log_lines())
                )
            time.sleep(_POLL_S)


def stop_recorded(record: FleetRecord, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
    """Stops a fleet that another process started; the ids of those that had to be killed."""
    stages = _stages([(service.role == "router", service) for service in record.services])
    return [
        instance_id
        for stage in stages
        for instance_id in _stop_stage({s.instance_id: s.process for s in stage}, timeout_s)
    ]


def _stages(services: Sequence[tuple[bool, T]]) -> list[list[T]]:
    """Routers first: they finish their streams while the workers still serve."""
    return [[s for is_router, s in services if is_router], [s for r, s in services if not r]]


def _stop_stage(processes: Mapping[str, ProcessIdentity], timeout_s: float) -> list[str]:
    for process in processes.values():
        process.send(signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    killed = []
    for instance_id, process in processes.items():
        if not process.wait(deadline_s - time.monotonic()):
            process.send(signal.SIGKILL)
            process.wait(5.0)
            killed.append(instance_id)
    return killed
