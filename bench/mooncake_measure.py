"""Measures Mooncake's Transfer Engine inside an interpreter that has it; bench.handoff_peers does.

    python mooncake_measure.py BYTES_MAX

Two processes with engines that find each other peer to peer and move data over tcp, which is what
the package built without CUDA has. Prints "ready", then answers each size in bytes that it reads
from stdin with one line: GB/s, the median of some synchronous writes. What arrived is compared.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# Enough writes for a median, and no more than this many bytes.
_WRITES = (5, 200)
_BYTES = 1 << 30


def _engine(memory: Any) -> Any:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    code = engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
    code = code or engine.register_memory(memory.ctypes.data, memory.nbytes)
    if code != 0:
        raise RuntimeError(f"the engine does not start: {code}")
    return engine


def _serve_target(pipe: Connection, bytes_max: int) -> None:
    memory = np.zeros(bytes_max, np.uint8)
    engine = _engine(memory)
    pipe.send((f"127.0.0.1:{engine.get_rpc_port()}", memory.ctypes.data))
    while True:
        num_bytes, wanted = pipe.recv()
        pipe.send(bool((memory[:num_bytes] == wanted).all()))


class Initiator:
    """The writing side."""

    def __init__(self, pipe: Connection, bytes_max: int) -> None:
        self._pipe = pipe
        self._memory = np.ones(bytes_max, np.uint8)
        self._engine = _engine(self._memory)
        self._peer, self._target = pipe.recv()
        self._mark = 1

    def measure(self, num_bytes: int) -> float:
        """GB/s."""
        self._mark = self._mark % 251 + 1
        self._memory[:num_bytes] = self._mark
        count = 1 + max(_WRITES[0], min(_WRITES[1], _BYTES // num_bytes))
        seconds = [self._write(num_bytes) for _ in range(count)]
        self._pipe.send((num_bytes, self._mark))
        if not self._pipe.recv():
            raise RuntimeError("what arrived is not what was sent")
        return num_bytes / statistics.median(seconds[1:]) / 1e9

    def _write(self, num_bytes: int) -> float:
        start = time.perf_counter()
        code = self._engine.transfer_sync_write(
            self._peer, self._memory.ctypes.data, self._target, num_bytes
        )
        if code != 0:
            raise RuntimeError(f"the write ended with {code}")
        return time.perf_counter() - start


def main() -> None:
    bytes_max = int(sys.argv[1])
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    target = context.Process(target=_serve_target, args=(theirs, bytes_max), daemon=True)
    target.start()
    initiator = Initiator(pipe, bytes_max)
    print("ready", flush=True)
    for line in sys.stdin:
        print(f"{initiator.measure(int(line)):.4f}", flush=True)
    target.kill()
    os._exit(0)  # the engine's threads do not end by themselves


if __name__ == "__main__":
    main()
