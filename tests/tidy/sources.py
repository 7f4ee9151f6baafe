"""The files that the tidy tests read: what git tracks, without what is generated."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GENERATED = ("crossdock/api/",)
_TEXT_SUFFIXES = (
    *(".c", ".cmake", ".cpp", ".h", ".md", ".proto", ".py", ".pyi", ".sh", ".supp", ".toml"),
    *(".txt", ".yaml", ".yml"),
)
_TEXT_NAMES = frozenset({"Makefile", "Dockerfile", "run", ".gitignore", ".clang-format"})


@cache
def tracked() -> tuple[str, ...]:
    """Paths from the root, as git knows them, that exist."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return tuple(path for path in listed if path and (ROOT / path).is_file())


def written_by_hand(*suffixes: str) -> list[str]:
    """Tracked files with one of the suffixes, generated ones left out."""
    return [p for p in tracked() if p.endswith(suffixes) and not p.startswith(_GENERATED)]


def texts() -> list[str]:
    """Every tracked file that people read; not the licence, recorded outputs and others' prose."""
    return [
        p
        for p in tracked()
        if (Path(p).suffix in _TEXT_SUFFIXES or Path(p).name in _TEXT_NAMES)
        and not p.startswith((*_GENERATED, "tests/golden/", "models/tiny-mla/heldout"))
    ]


@cache
def read(path: str) -> str:
    """The text of a tracked file."""
    return (ROOT / path).read_text(encoding="utf-8")
