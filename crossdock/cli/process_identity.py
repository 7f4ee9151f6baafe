"""Names a process so that a signal never reaches another one that got its pid later."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A pid and when the kernel started it; only the two together name a process."""

    pid: int
    start_ticks: int  # Clock ticks after boot, as /proc says.

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this pid now; None when there is none."""
        facts = _facts(pid)
        return cls(pid, facts[1]) if facts is not None else None

    def is_alive(self) -> bool:
        """Whether it runs; one that has ended and waits for its parent does not."""
        facts = _facts(self.pid)
        return facts is not None and facts[1] == self.start_ticks and facts[0] not in "ZX"

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; a process that has ended is left alone."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor holds the process: what is checked now is what gets the signal.
                if self.is_alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended; False when it still runs after the timeout."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if not self.is_alive():
                return True
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            return bool(ended.poll(max(0.0, timeout_s) * 1_000))
        finally:
            os.close(descriptor)


def _facts(pid: int) -> tuple[str, int] | None:
    """State letter and start time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name stands in parentheses and may hold anything.
    fields = text[text.rindex(")") + 1 :].split()
    return fields[0], int(fields[19])
