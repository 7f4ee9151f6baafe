"""A program of another project that stays: it says "ready", then answers each line with a number.

Starting one takes longer than a measurement, and a peer that stays can take turns with crossdock.
"""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from bench.peer_programs import PeerError

# Loading and compiling; then one case.
_START_S: Final = 300.0
_CASE_S: Final = 120.0


class PeerProcess:
    """A running peer, by a name for errors."""

    def __init__(self, name: str, child: subprocess.Popen[bytes], log: Path) -> None:
        self._name = name
        self._child = child
        self._log = log
        self._read("ready", _START_S)

    def measure(self, case: str) -> float:
        """One measurement of the case, in the unit that the program has. Raises PeerError."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(f"{case}\n".encode())
        except OSError as error:
            raise PeerError(f"{self._name} ended: {self._last_words()}") from error
        return float(self._read("", _CASE_S))

    def _read(self, expected: str, timeout_s: float) -> str:
        """The next line that is ours: others may be printed. Raises PeerError after the time."""
        end = time.monotonic() + timeout_s
        assert self._child.stdout is not None
        while line := _line(self._child.stdout, end - time.monotonic()):
            text = line.decode(errors="replace").strip()
            if text == expected or (not expected and _is_number(text)):
                return text
        raise PeerError(f"{self._name} did not answer: {self._last_words()}")

    def _last_words(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace").strip()[-300:]


@contextmanager
def peer_process(
    name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[PeerProcess]:
    """Runs until the block ends. What it logs goes to `log`."""
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,  # a line that waits in a buffer of ours would be invisible to select
        ) as child,
    ):
        try:
            yield PeerProcess(name, child, log)
        finally:
            child.kill()


def _line(stream: IO[bytes], timeout_s: float) -> bytes:
    """Empty when the time is over or the stream ended."""
    ready, _, _ = select.select([stream], [], [], max(0.0, timeout_s))
    return stream.readline() if ready else b""


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
