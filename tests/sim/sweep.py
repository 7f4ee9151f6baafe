"""`make sim`: many seeds on all cores, or one with its trace."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.sim.scenario import draw
from tests.sim.simulation import Result, Simulation

_NUM_FIXED = 200
_NUM_FRESH = 200


def run_seed(seed: int, *, trace: bool = False) -> Result:
    return Simulation(draw(seed), trace=trace).run()


def run_seeds(seeds: Iterable[int], num_processes: int) -> Iterator[Result]:
    if num_processes == 1:
        yield from map(run_seed, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(num_processes) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=4)


def _replay(seed: int) -> int:
    result = run_seed(seed, trace=True)
    for line in result.trace:
        print(line)
    print(f"seed {seed}: digest {result.digest}")
    for breach in result.breaches:
        print(f"  {breach}")
    return 1 if result.breaches else 0


def _sweep(seeds: list[int], num_processes: int) -> int:
    started_s = time.monotonic()
    counts: Counter[str] = Counter()
    num_failed = 0
    for result in run_seeds(seeds, num_processes):
        counts.update(result.counts)
        if result.breaches:
            num_failed += 1
            print(f"seed {result.seed} FAILED; replay: make sim SEED={result.seed}")
            for breach in result.breaches[:5]:
                print(f"  {breach}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{name:40} {count}")
    took_s = time.monotonic() - started_s
    print(f"{len(seeds)} seeds, {num_failed} failed, {took_s:.1f} s on {num_processes} processes")
    return 1 if num_failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one, with its trace")
    parser.add_argument("--first", type=int, default=0, help="first of the fixed seeds")
    parser.add_argument("--fixed", type=int, default=_NUM_FIXED, help="how many fixed seeds")
    parser.add_argument("--fresh", type=int, default=_NUM_FRESH, help="how many fresh seeds")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _replay(arguments.seed)
    fresh = [secrets.randbits(48) for _ in range(arguments.fresh)]
    if fresh:
        print("fresh seeds:", " ".join(map(str, fresh)))
    fixed = range(arguments.first, arguments.first + arguments.fixed)
    return _sweep([*fixed, *fresh], arguments.jobs)
