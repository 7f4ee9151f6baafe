"""An engine that is killed while it makes its segment: the next one removes what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")
WAIT_S = 120.0
TRIES_MAX = 5


def _segments() -> set[Path]:
    """Names of segments that are being made, whoever makes them; UCX's queues are smaller."""
    found = set()
    for path in SHARED_MEMORY.glob("crossdock-*/ucx_shm_posix_*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > 16 << 20:
                found.add(path)
    return found


def _is_held(directory: Path) -> bool:
    """Whether the process that made it lives."""
    try:
        held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False


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


async def _leave_half_made(model: Path) -> set[Path]:
    """What a killed start leaves; nothing where the segment was made before it was met."""
    before = _segments()
    # Its pages take long enough to be met in the making.
    with _start(model, "2GiB") as front:
        assert front.stdout is not None
        serves = asyncio.create_task(asyncio.to_thread(front.stdout.readline))
        try:
            await _until(lambda: bool(_segments() - before) or serves.done())
        finally:
            front.kill()
        await serves
    # Its engine ends with it, but giving back so many pages takes a moment.
    await _until(lambda: not any(_is_held(path.parent) for path in _segments() - before))
    return _segments() - before


@pytest.mark.timeout(600)
async def test_what_a_killed_start_left_in_shared_memory_goes(tiny_model: Path) -> None:
    for _ in range(TRIES_MAX):
        left = await _leave_half_made(tiny_model)
        if left:
            break
    assert left, "each of them was done too early to show anything"
    with _start(tiny_model, "64MiB") as successor:
        try:
            assert successor.stdout is not None
            assert await asyncio.to_thread(successor.stdout.readline), "it does not serve"
            assert not left & _segments()
        finally:
            successor.terminate()
    assert successor.returncode == 0
