"""vLLM on the CPU: one process for a dtype and a number of threads. Values are tokens/s."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peer_process import PeerProcess, peer_process
from bench.peer_programs import pinned

_SCRIPT: Final = Path(__file__).with_name("vllm_measure.py")


@contextmanager
def vllm_run(
    python: Path, model: Path, dtype: str, threads: int, log: Path
) -> Iterator[PeerProcess]:
    """Runs until the block ends. What it logs goes to `log`."""
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        # vLLM warns when its own OpenMP is not loaded before everything else.
        "LD_PRELOAD": str(python.parent.parent / "lib" / "libiomp5.so"),
    }
    command = pinned(threads, [python, _SCRIPT, model, dtype])
    with peer_process("vllm", command, environment, log) as process:
        yield process
