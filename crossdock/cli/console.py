"""Where the command line prints tables."""

from __future__ import annotations

from typing import Final

from rich.console import Console

# A pipe or a file has no width of its own, and a folded table is hard to read there.
_COLUMNS_WITHOUT_TERMINAL: Final = 120


def table_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or wide enough for our tables where there is none."""
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _COLUMNS_WITHOUT_TERMINAL
    return console
