"""A benchmark that is told to end ends what it started, whether it waits or is busy."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import asyncio, sys, time
from bench.ending import unwind_on_signals

class Fleet:
    def __enter__(self):
        return self
    def __exit__(self, *_):
        print("ended", flush=True)

async def figures():
    with Fleet():
        print("started", flush=True)
        # In short naps: a signal that comes just before one is noticed after it.
        for _ in range(6_000):
            if sys.argv[1] == "busy":
                time.sleep(0.01)
            else:
                await asyncio.sleep(0.01)
        yield

async def collect():
    return [figure async for figure in figures()]

unwind_on_signals()
asyncio.run(collect())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["busy", "waiting"])
def test_what_was_started_ends(number: signal.Signals, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        child.send_signal(number)
        out, _ = child.communicate(timeout=60)
    assert (out, child.returncode) == ("ended\n", 128 + number)
