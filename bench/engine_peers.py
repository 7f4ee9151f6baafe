"""`python -m bench.engine_peers`: crossdock's engine beside llama.cpp and vLLM, in one run.

They take turns on the same weights, formats and threads. Prints what each peer was compiled for
and what could not be measured, then one table; writes JSON lines to bench/out/.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from bench.ending import unwind_on_signals
from bench.engine_session import Session, Turns
from bench.figure import FigureError
from bench.figure_table import markdown, print_table
from bench.native_programs import ProgramError, find_programs
from bench.pairs import FORMATS
from bench.peer_programs import LlamaPrograms
from crossdock import models
from crossdock.models.errors import ModelError

_OUT: Final = Path(__file__).parent / "out"


def main() -> int:
    arguments = _parser().parse_args()
    unwind_on_signals()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "engine_peers_rounds.jsonl"
    log.write_text("", encoding="utf-8")
    names = arguments.formats.split(",")
    try:
        session = Session(
            programs=find_programs(arguments.programs),
            llama=LlamaPrograms.find(os.environ),
            model=models.resolve(models.DEFAULT_MODEL),
            formats=[f for f in FORMATS if f.name in names],
            kernels=arguments.kernels,
            log=log,
        )
        _measure(session, arguments)
    except (ProgramError, FigureError, ModelError) as error:
        print(f"bench engine_peers: {error}", file=sys.stderr)
        return 1
    with (arguments.out / "engine_peers.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(figure.to_line() + "\n" for figure in session.figures)
    (arguments.out / "engine_peers.md").write_text(markdown(session.figures), encoding="utf-8")
    print_table(session.figures)
    for what, why in session.not_measured.items():
        print(f"not measured: {what}: {why}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.engine_peers", description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="folder with bench_*")
    parser.add_argument("--out", type=Path, default=_OUT, help="folder for the JSON lines")
    parser.add_argument("--threads", default="2,1", help="numbers of threads, the largest first")
    parser.add_argument("--formats", default=",".join(f.name for f in FORMATS))
    parser.add_argument("--kernels", default="auto", help="crossdock's variant of them")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    return parser


def _measure(session: Session, arguments: argparse.Namespace) -> None:
    print(f"load average {os.getloadavg()[0]:.2f}", flush=True)
    session.say_peers()
    thread_counts = [int(text) for text in arguments.threads.split(",")]
    for index, threads in enumerate(thread_counts):
        # All of it fits into a quarter of an hour: fewer threads are slower and take one turn
        # less, and vLLM, which is slow to start, takes part on the first number of threads alone.
        num_rounds = max(1, arguments.rounds - min(index, 1))
        session.pair_formats(Turns(threads, num_rounds, with_vllm=index == 0))
        session.attend(threads)
        session.compare_orders(threads)
    session.start_engines(thread_counts[0])


if __name__ == "__main__":
    sys.exit(main())
