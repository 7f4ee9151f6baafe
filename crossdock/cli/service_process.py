"""One service as a child process: started, awaited until it serves, watched, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from crossdock.cli.errors import FleetError
from crossdock.cli.fleet_plan import ServiceSpec
from crossdock.cli.fleet_record import ServiceRecord
from crossdock.cli.process_identity import ProcessIdentity

_LOG_LINES_SHOWN = 8


class ServiceProcess:
    """A started service. What it prints goes to files, so that it outlives this process."""

    def __init__(
        self, spec: ServiceSpec, directory: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.spec = spec
        self.log = directory / f"{spec.instance_id}.log"
        self.started_s = time.monotonic()
        self._printed = directory / f"{spec.instance_id}.ready"
        # -P: the folder that the user is in has no say in what is imported.
        command = [sys.executable, "-P", *spec.program]
        with self._printed.open("wb") as printed, self.log.open("wb") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=log,
                env=dict(environ) if environ is not None else None,
                # Ctrl-C reaches the command line alone, which then drains in order.
                start_new_session=True,
            )
        # The child is not reaped yet, so its pid cannot have passed on.
        identity = ProcessIdentity.of(self._child.pid)
        assert identity is not None
        self.identity = identity

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._child.poll()

    def read_ready(self) -> ServiceRecord | None:
        """Its record once it serves; None before. Raises FleetError when it has died."""
        code = self.exit_code
        line, newline, _ = self._printed.read_bytes().partition(b"\n")
        if newline:
            return self._record(line)
        if code is not None:
            raise FleetError(self.describe_death())
        return None

    def describe_death(self) -> str:
        """How it ended, with the last lines of its log, or why there may be none."""
        code = self.exit_code
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        lines = self.last_log_lines()
        if not lines and os.statvfs(self.log).f_bavail == 0:
            lines = ["nothing, for the disk is full"]
        return f"{self.spec.instance_id} ended with {how}; the end of {self.log}:\n" + "\n".join(
            f"  {line}" for line in lines
        )

    def last_log_lines(self) -> list[str]:
        with self.log.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip()[:400] for line in deque(file, maxlen=_LOG_LINES_SHOWN)]

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end; False when it still runs after the timeout."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _record(self, line: bytes) -> ServiceRecord:
        try:
            ready = json.loads(line)
            if ready["event"] != "ready":
                raise KeyError("event")
            return ServiceRecord(
                role=self.spec.role,
                instance_id=self.spec.instance_id,
                process=self.identity,
                address=ready["address"],
                http_address=ready.get("http_address") or "",
                metrics_address=ready["metrics_address"],
                log=self.log,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise FleetError(
                f"{self.spec.instance_id} printed {line[:200]!r} instead of its ready line"
            ) from error
