"""`python -m bench.handoff_peers`: moving KV bytes beside memcpy, UCX, NIXL, Mooncake.

The native program takes turns with the peers, round by round, in one run. A peer runs only in its
turn, since some of them spin. Every row names the system, the transport and the memory it used.
Writes JSON lines and a Markdown table to bench/out/. NIXL_PYTHON and MOONCAKE_PYTHON name the
peers' interpreters; what is absent is said.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bench.ending import unwind_on_signals
from bench.figure import Figure, FigureError
from bench.figure_table import markdown, print_table
from bench.native_programs import ProgramError, find_programs, run_program
from bench.peer_process import peer_process
from bench.peer_programs import PeerError, peer_python

_OUT: Final = Path(__file__).parent / "out"
_MIB: Final = 1 << 20
_SIZES_MIB: Final = (1, 16, 256)
# Speeds and latencies; what computing does not hide of a transfer; four senders into one.
_NATIVE: Final = ("handoff", "handoff_overlap", "handoff_pacing")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another project's way of moving the bytes."""

    name: str
    row: str  # system, transport and memory, as the table shows them
    environment: Mapping[str, str]

    @property
    def script(self) -> Path:
        return Path(__file__).with_name(f"{self.name}_measure.py")


PEERS: Final = (
    Peer("nixl", "NIXL, its choice (cma), malloc", {}),
    Peer("nixl", "NIXL, tcp, malloc", {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}),
    Peer("mooncake", "Mooncake, tcp, malloc", {}),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.handoff_peers", description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="folder with bench_*")
    parser.add_argument("--out", type=Path, default=_OUT, help="folder for the JSON lines")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case of speed and turn")
    arguments = parser.parse_args()
    unwind_on_signals()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(f"load average {os.getloadavg()[0]:.2f}", flush=True)
    rounds: list[list[Figure]] = []
    not_measured: dict[str, str] = {}
    try:
        programs = find_programs(arguments.programs)
        for _ in range(arguments.rounds):
            rounds.append(list(_native(programs, arguments.seconds)))
            for peer in PEERS:
                try:
                    rounds[-1] += _measure(peer, arguments.out)
                except PeerError as error:
                    not_measured[peer.row] = str(error)
    except (ProgramError, FigureError) as error:
        print(f"bench handoff_peers: {error}", file=sys.stderr)
        return 1
    figures = medians(rounds)
    with (arguments.out / "handoff_peers.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(figure.to_line() + "\n" for figure in figures)
    (arguments.out / "handoff_peers.md").write_text(markdown(figures), encoding="utf-8")
    print_table(figures)
    for row, why in not_measured.items():
        print(f"not measured: {row}: {why}")
    return 0


def _native(programs: Mapping[str, Path], seconds: float) -> Iterator[Figure]:
    for name in _NATIVE:
        arguments = [str(seconds)] if name == "handoff" else []
        if name not in programs:
            raise ProgramError(f"there is no program bench_{name}; found {sorted(programs)}")
        for _, figure in run_program(programs[name], arguments):
            yield figure


def _measure(peer: Peer, out: Path) -> list[Figure]:
    python = peer_python(peer.name, os.environ)
    command = [str(python), str(peer.script), str(max(_SIZES_MIB) * _MIB)]
    environment = {**os.environ, **peer.environment}
    with peer_process(peer.name, command, environment, out / f"{peer.name}.log") as process:
        return [
            Figure("handoff", f"{peer.row}, {size} MiB", process.measure(str(size * _MIB)), "GB/s")
            for size in _SIZES_MIB
        ]


def medians(rounds: list[list[Figure]]) -> list[Figure]:
    """One figure a case: the medians over the rounds of the value, the limit and the ratio."""
    by_case: dict[str, list[Figure]] = defaultdict(list)
    for figures in rounds:
        for figure in figures:
            by_case[figure.case].append(figure)
    return [
        replace(
            same[0],
            value=statistics.median(figure.value for figure in same),
            limit=_median([figure.limit for figure in same]),
            ratio=_median([figure.ratio for figure in same]),
        )
        for same in by_case.values()
    ]


def _median(values: list[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


if __name__ == "__main__":
    sys.exit(main())
