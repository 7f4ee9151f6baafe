"""How a benchmark ends before its time: with everything that it started."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def unwind_on_signals() -> None:
    """SIGINT and SIGTERM raise SystemExit wherever the program is, so that each `with` ends what it
    started; asyncio's own SIGINT waits for code that blocks. A second signal ends it at once.
    """
    for number in _SIGNALS:
        signal.signal(number, _unwind)


def _unwind(number: int, _frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    # As a shell reports a program that a signal ended.
    raise SystemExit(128 + number)
