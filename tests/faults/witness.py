"""Tells a slow machine from a slow product, for bounds that the product keeps on any machine that
runs it when it is to run.

A witness stands beside what is measured: a thread that asks for a little work every few
milliseconds. What it waits longer for that than it asked for is time that others had.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

from tests.faults.summary import SUMMARY

_SLEEP_S: Final = 0.003
_WORK_S: Final = 0.002
# A death is known and answered over some ten turns of processes, each of which may wait as long.
# With thirty runnable threads on two cores a witness stood for 0.02 to 0.2 s, and a death was known
# and answered within 0.4 s.
_EXPLAINS_S: Final = 0.05
_TRIES_MAX: Final = 4
# What even such a machine keeps.
BUSY_MAX_S: Final = 10.0


class Witness:
    """Use it as a context; `stood_s` is the longest that it waited for its turn."""

    def __init__(self) -> None:
        self.stood_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            begin_s = time.monotonic()
            time.sleep(_SLEEP_S)
            worked_until_s = time.thread_time() + _WORK_S
            while time.thread_time() < worked_until_s:
                pass
            late_s = time.monotonic() - begin_s - _SLEEP_S - _WORK_S
            self.stood_s = max(self.stood_s, late_s)


async def keeps(bound_s: float, measure: Callable[[], Awaitable[tuple[float, float]]]) -> None:
    """Fails when the bound is missed while the machine had time. `measure` does all of it anew and
    tells how long that took, and how long a witness stood meanwhile; it has a bound of its own.
    """
    for _ in range(_TRIES_MAX):
        took_s, stood_s = await measure()
        if took_s < bound_s:
            return
        told = (
            f"{took_s:.2f} s instead of {bound_s:g}; the machine stood for {stood_s * 1e3:.0f} ms"
        )
        assert stood_s >= _EXPLAINS_S, told
        SUMMARY.lines.append(told)
