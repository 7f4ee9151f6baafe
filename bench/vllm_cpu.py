"""vLLM on the CPU: one process that stays, because its start takes longer than a measurement."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from bench.peer_programs import PeerError, pinned

_SCRIPT: Final = Path(__file__).with_name("vllm_measure.py")
# Loading and compiling; then one case.
_START_S: Final = 300.0
_CASE_S: Final = 120.0


class VllmRun:
    """One dtype on some threads. Values are tokens per second."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path) -> None:
        self._child = child
        self._log = log
        self._read("ready", _START_S)

    def measure(self, case: str) -> float:
        """One measurement of the case. Raises PeerError."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(f"{case}\n".encode())
        except OSError as error:
            raise PeerError(f"vllm ended: {self._last_words()}") from error
        return float(self._read("", _CASE_S))

    def _read(self, expected: str, timeout_s: float) -> str:
        """The next line that is ours: vLLM may print others. Raises PeerError after the time."""
        end = time.monotonic() + timeout_s
        assert self._child.stdout is not None
        while line := _line(self._child.stdout, end - time.monotonic()):
            text = line.decode(errors="replace").strip()
            if text == expected or (not expected and _is_number(text)):
                return text
        raise PeerError(f"vllm did not answer: {self._last_words()}")

    def _last_words(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace").strip()[-300:]


@contextmanager
def vllm_run(python: Path, model: Path, dtype: str, threads: int, log: Path) -> Iterator[VllmRun]:
    """Runs until the block ends. What it logs goes to `log`."""
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        # vLLM warns when its own OpenMP is not loaded before everything else.
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
    }
    command = pinned(threads, [python, _SCRIPT, model, dtype])
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
            yield VllmRun(child, log)
        finally:
            child.kill()


def _line(stream: IO[bytes], timeout_s: float) -> bytes:
    """Empty when the time is over or the stream ended."""
    ready, _, _ = select.select([stream], [], [], max(0.0, timeout_s))
    return stream.readline() if ready else b""


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
