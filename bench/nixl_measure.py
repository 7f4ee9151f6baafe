"""Measures NIXL inside an interpreter that has it; bench.handoff_peers starts it.

    python nixl_measure.py BYTES_MAX

Two processes with agents of NIXL's UCX backend; UCX_TLS of the environment picks the transports.
Prints "ready", then answers each size in bytes that it reads from stdin with one line: GB/s, the
median of some WRITEs from the post to the state "DONE". What arrived is compared each time.
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


def _agent(name: str) -> Any:
    from nixl_cu12 import nixl_agent, nixl_agent_config

    return nixl_agent(name, nixl_agent_config(True, True, 0, backends=["UCX"]))


def _serve_target(pipe: Connection, bytes_max: int) -> None:
    agent = _agent("target")
    memory = np.zeros(bytes_max, np.uint8)
    agent.register_memory([(memory.ctypes.data, bytes_max, 0, "target")], "DRAM")
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    while True:
        num_bytes, wanted = pipe.recv()
        pipe.send(bool((memory[:num_bytes] == wanted).all()))


class Initiator:
    """The writing side."""

    def __init__(self, pipe: Connection, bytes_max: int) -> None:
        self._pipe = pipe
        self._agent = _agent("initiator")
        self._memory = np.ones(bytes_max, np.uint8)
        self._agent.register_memory([(self._memory.ctypes.data, bytes_max, 0, "source")], "DRAM")
        metadata, self._target = pipe.recv()
        peer = self._agent.add_remote_agent(metadata)
        self._peer = peer.decode() if isinstance(peer, bytes) else peer
        self._mark = 1

    def measure(self, num_bytes: int) -> float:
        """GB/s."""
        local, remote = (
            self._agent.get_xfer_descs([(address, num_bytes, 0)], "DRAM")
            for address in (self._memory.ctypes.data, self._target)
        )
        transfer = self._agent.initialize_xfer("WRITE", local, remote, self._peer, b"")
        self._mark = self._mark % 251 + 1
        self._memory[:num_bytes] = self._mark
        count = 1 + max(_WRITES[0], min(_WRITES[1], _BYTES // num_bytes))
        seconds = [self._write(transfer) for _ in range(count)]
        self._agent.release_xfer_handle(transfer)
        self._pipe.send((num_bytes, self._mark))
        if not self._pipe.recv():
            raise RuntimeError("what arrived is not what was sent")
        return num_bytes / statistics.median(seconds[1:]) / 1e9

    def _write(self, transfer: Any) -> float:
        start = time.perf_counter()
        state = self._agent.transfer(transfer)
        while state == "PROC":
            state = self._agent.check_xfer_state(transfer)
        if state != "DONE":
            raise RuntimeError(f"the write ended as {state}")
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
    os._exit(0)  # NIXL's threads do not end by themselves


if __name__ == "__main__":
    main()
