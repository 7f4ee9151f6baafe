"""What the metrics of a service with an engine are read from."""

from __future__ import annotations

from prometheus_client import ProcessCollector
from prometheus_client.registry import Collector

from crossdock.engine.front import Front
from crossdock.engine.translation import status_of
from crossdock.fabric.counters import FabricCollector
from crossdock.telemetry.instance import InstanceCollector

# No process has it, so that nothing is exported while there is no engine.
_NO_PID = "none"


def collectors_of(front: Front) -> list[Collector]:
    """The status of the instance, what its engine process uses, and the NICs of the host."""

    def engine_pid() -> int | str:
        engine = front.supervisor.current_or_none()
        return engine.pid if engine is not None else _NO_PID

    return [
        InstanceCollector(lambda: status_of(front)),
        ProcessCollector(namespace="crossdock_engine", pid=engine_pid, registry=None),
        FabricCollector(),
    ]
