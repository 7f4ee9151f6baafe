"""The record of a running fleet: which processes it has, where they listen and log.

A fleet's folder is its run directory: fleet.json, and per service a log and what it printed when
it was ready. The record is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from crossdock.cli.errors import FleetError
from crossdock.cli.fleet_plan import Role
from crossdock.cli.process_identity import ProcessIdentity

DEFAULT_NAME = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """One running service."""

    role: Role
    instance_id: str
    process: ProcessIdentity
    address: str  # Of its gRPC server.
    http_address: str  # Of the router's HTTP server; empty for the others.
    metrics_address: str  # Of its /metrics.
    log: Path


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """A fleet as `up` left it."""

    name: str
    model_directory: Path
    services: tuple[ServiceRecord, ...]

    @property
    def router(self) -> ServiceRecord:
        return next(service for service in self.services if service.role == "router")

    def is_alive(self) -> bool:
        """Whether any of its services still runs."""
        return any(service.process.is_alive() for service in self.services)


def fleets_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where fleets keep their run directories."""
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    base = runtime if runtime.is_absolute() else Path.home() / ".cache"
    return base / "crossdock" / "fleets"


def run_directory(name: str) -> Path:
    """The run directory of the fleet of that name; it need not exist."""
    if not _NAME.fullmatch(name):
        raise FleetError(
            f"{name!r} is no name for a fleet: use letters, digits, '.', '_' and '-', at most 64"
        )
    return fleets_directory() / name


def save(record: FleetRecord, directory: Path) -> None:
    """Writes fleet.json, whole or not at all."""
    text = json.dumps(asdict(record), indent=2, default=str) + "\n"
    written = directory / "fleet.json.new"
    written.write_text(text, encoding="utf-8")
    written.rename(directory / "fleet.json")


def load(directory: Path) -> FleetRecord | None:
    """The record in a run directory; None when there is none."""
    path = directory / "fleet.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        services = tuple(
            ServiceRecord(
                role=service["role"],
                instance_id=service["instance_id"],
                process=ProcessIdentity(**service["process"]),
                address=service["address"],
                http_address=service["http_address"],
                metrics_address=service["metrics_address"],
                log=Path(service["log"]),
            )
            for service in fields["services"]
        )
        return FleetRecord(fields["name"], Path(fields["model_directory"]), services)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise FleetError(f"{path} is damaged ({error}): remove it") from error


def remove(directory: Path) -> None:
    """Forgets the fleet; its logs stay until the next one of that name starts."""
    (directory / "fleet.json").unlink(missing_ok=True)


def find(name: str) -> FleetRecord:
    """The running fleet of that name; raises FleetError when there is none."""
    record = load(run_directory(name))
    if record is None or not record.is_alive():
        others = [record.name for record in all_running()]
        hint = f"running: {', '.join(others)}; name one with --name" if others else "none runs"
        raise FleetError(f"no fleet named {name!r} ({hint}): start one with `crossdock up`")
    return record


def all_running() -> list[FleetRecord]:
    """Every fleet of this user that has a live service."""
    root = fleets_directory()
    folders = sorted(root.iterdir()) if root.is_dir() else []
    records = [load(folder) for folder in folders if folder.is_dir()]
    return [record for record in records if record is not None and record.is_alive()]
