"""Others' product, by torch, on the shapes of bench_engine's product cases; a script of its own.

    python torch_product.py THREADS ROWS...

Prints GFLOP/s for each number of rows: f32 rows times the matrices of 24 layers in turn, so that
the weights come from memory. torch is free to add in any order.
"""

from __future__ import annotations

import sys
import time

import torch

# (depth, outputs), as product_cases.cpp has them.
_SHAPES = ((576, 3_072), (1_536, 576))
_LAYERS = 24


def main() -> None:
    threads, *rows = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    matrices = [
        torch.full((outputs, depth), 0.01) for _ in range(_LAYERS) for depth, outputs in _SHAPES
    ]
    with torch.inference_mode():
        for num_rows in rows:
            inputs = {depth: torch.full((num_rows, depth), 0.25) for depth, _ in _SHAPES}
            _pass(matrices, inputs)
            start = time.perf_counter()
            _pass(matrices, inputs)
            seconds = time.perf_counter() - start
            flop = sum(2 * num_rows * matrix.numel() for matrix in matrices)
            print(f"{flop / seconds / 1e9:.3f}")


def _pass(matrices: list[torch.Tensor], inputs: dict[int, torch.Tensor]) -> None:
    for matrix in matrices:
        torch.nn.functional.linear(inputs[matrix.shape[1]], matrix)


if __name__ == "__main__":
    main()
