"""What batch invariance costs: the engine's f32 product beside products free to add in any order.

Free are one of our own for a single row, on the same packed weights, and torch's for every number
of rows, by the interpreter that TORCH_PYTHON names, else this one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from bench.figure import Figure
from bench.pairs import OURS, Rounds, Subject, threads_text
from bench.peer_programs import PeerError, pinned, run

ROWS: Final = (1, 16, 512)
CASES: Final = "product_f32_"
_ROUNDS: Final = 3
_FREE: Final = Subject(OURS, "f32 in any order")
_ORDERED: Final = Subject(OURS, "f32")
_TORCH: Final = Subject("torch", "f32")
_SCRIPT: Final = Path(__file__).with_name("torch_product.py")


def measure(
    engine: Callable[[], Iterable[tuple[str, Figure]]],
    threads: int,
    on_miss: Callable[[PeerError], None],
) -> Iterator[Figure]:
    """`engine` runs the product cases of bench_engine once; the sides take turns."""
    rounds = Rounds(threads)
    for _ in range(_ROUNDS):
        for _, figure in engine():
            is_free = figure.case.endswith("_free")
            subject = _FREE if is_free else _ORDERED
            rounds.add(subject, figure.case.removesuffix("_free"), figure.value)
        try:
            for rows, value in zip(ROWS, torch_gflops(threads), strict=True):
                rounds.add(_TORCH, f"{CASES}{rows}", value)
        except PeerError as error:
            on_miss(error)
    yield from figures(rounds)


def figures(rounds: Rounds) -> Iterator[Figure]:
    """Per number of rows the ordered product against each that is free."""
    for rows in ROWS:
        case = f"{CASES}{rows}"
        value = rounds.median(_ORDERED, case)
        for peer in (_FREE, _TORCH):
            limit = rounds.median(peer, case)
            if value is not None and limit is not None:
                yield Figure(
                    bench="invariance",
                    case=f"f32 product, rows: {rows}, {threads_text(rounds.threads)}",
                    value=value,
                    unit="GFLOP/s",
                    limit=limit,
                    ratio=rounds.ratio(_ORDERED, peer, case),
                    against=str(peer),
                )


def torch_gflops(threads: int) -> list[float]:
    """In the order of ROWS. Raises PeerError."""
    python = os.environ.get("TORCH_PYTHON", "")
    if not python and importlib.util.find_spec("torch") is None:
        raise PeerError("torch not found: set TORCH_PYTHON to an interpreter that has it")
    command = [python or sys.executable, str(_SCRIPT), str(threads), *map(str, ROWS)]
    return [float(line) for line in run(pinned(threads, command)).stdout.split()]
