"""`python -m bench`: runs the benchmarks, prints a table, writes JSON lines to bench/out/."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from bench import kv_perplexity, mixed_load, ttft
from bench.ending import unwind_on_signals
from bench.figure import Figure, FigureError
from bench.figure_table import print_table
from bench.native_programs import ProgramError, find_programs, run_program
from crossdock import models
from crossdock.cli.errors import CliError
from crossdock.errors import CrossdockError
from crossdock.telemetry.logs import configure_logging

NATIVE = ("handoff", "handoff_overlap", "handoff_pacing", "scheduler", "prefix", "engine")
SERVED = {
    "kv_perplexity": kv_perplexity.measure,
    "mixed_load": mixed_load.measure,
    "ttft": ttft.measure,
}
_OUT = Path(__file__).parent / "out"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="folder with bench_*")
    parser.add_argument("--out", type=Path, default=_OUT, help="folder for the JSON lines")
    parser.add_argument("names", nargs="*", default=[*NATIVE, *SERVED], help="which; all")
    arguments = parser.parse_args()
    configure_logging("warning")
    unwind_on_signals()
    arguments.out.mkdir(parents=True, exist_ok=True)
    programs = find_programs(arguments.programs)
    figures: list[Figure] = []
    failed = False
    for name in arguments.names:
        print(f"bench {name} ...", file=sys.stderr, flush=True)
        try:
            figures += _run(name, programs, arguments.out / f"{name}.jsonl")
        except (ProgramError, FigureError, CliError, CrossdockError) as error:
            print(f"bench {name}: {error}", file=sys.stderr)
            failed = True
    print_table(figures)
    return 1 if failed else 0


def _run(name: str, programs: dict[str, Path], out: Path) -> list[Figure]:
    figures: list[Figure] = []
    with out.open("w", encoding="utf-8") as file:
        if name in SERVED:
            for figure in asyncio.run(_collect(name)):
                file.write(figure.to_line() + "\n")
                figures.append(figure)
            return figures
        if name not in programs:
            raise ProgramError(f"there is no program bench_{name}; found {sorted(programs)}")
        for line, figure in run_program(programs[name], _arguments(name)):
            file.write(line + "\n")
            figures.append(figure)
    return figures


async def _collect(name: str) -> list[Figure]:
    model = models.resolve(models.DEFAULT_MODEL)
    return [figure async for figure in SERVED[name](model)]


def _arguments(name: str) -> list[str]:
    return ["--model", str(models.resolve(models.DEFAULT_MODEL))] if name == "engine" else []


if __name__ == "__main__":
    sys.exit(main())
