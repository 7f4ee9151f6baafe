"""An engine that is killed while it makes its segment: the next one removes what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
WAIT_S = 60.0


def _segments() -> set[Path]:
    """Names of segments that are being made, whoever makes them; UCX's queues are smaller."""
    found = set()
    for path in SHARED_MEMORY.glob("crossdock-*/ucx_shm_posix_*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > 16 << 20:
                found.add(path)
    return found


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - no event tells of another process's files
            await asyncio.sleep(0.002)


def _start(model: Path, kv_memory: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "services.decode", "--model", model, "--kv-memory", kv_memory],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.timeout(240)
async def test_what_a_killed_start_left_in_shared_memory_goes(tiny_model: Path) -> None:
    before = _segments()
    # Its pages take long enough to be met in the making.
    with _start(tiny_model, "2GiB") as killed:
        try:
            await _until(lambda: bool(_segments() - before))
        finally:
            killed.kill()
    left = _segments() - before
    assert left, "it was done too early to show anything"
    with _start(tiny_model, "64MiB") as successor:
        try:
            assert successor.stdout is not None
            assert await asyncio.to_thread(successor.stdout.readline), "it does not serve"
            assert not left & _segments()
        finally:
            successor.terminate()
    assert successor.returncode == 0
