"""Runs the native benchmark programs: each prints one JSON line a case on stdout."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figure import Figure

# A program that hangs is a failure, not a night.
_TIMEOUT_S = 1_800.0


class ProgramError(RuntimeError):
    """A benchmark program failed."""


def find_programs(folder: Path) -> dict[str, Path]:
    """By the name after `bench_`."""
    return {
        path.name.removeprefix("bench_"): path
        for path in sorted(folder.glob("bench_*"))
        if path.is_file() and path.stat().st_mode & 0o111
    }


def run_program(program: Path, arguments: Sequence[str]) -> Iterator[tuple[str, Figure]]:
    """Each line with the figure in it, as the program prints it."""
    with subprocess.Popen(
        [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                yield line.rstrip("\n"), Figure.from_line(line)
            code = child.wait(_TIMEOUT_S)
        finally:
            child.kill()
    if code != 0:
        raise ProgramError(f"{program} ended with exit code {code}")
