"""The command line's errors are one line and a non-zero exit, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WAIT_S = 60.0


def _run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from crossdock.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["down"], "no fleet named 'default' (none runs)"),
        (["status", "--name", "x"], "no fleet named 'x'"),
        (["generate", "hello"], "start one with `crossdock up`"),
        (["generate", "hello", "--address", "127.0.0.1:1"], "127.0.0.1:1"),
        (["chat", "hello", "--name", "../x"], "no name for a fleet"),
        (["up", "--model", "nope"], "neither a directory nor a known model"),
        (["model", "fetch", "nope"], "cannot be fetched"),
    ],
)
def test_an_operating_error_is_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    ended = _run(tmp_path, *arguments)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert message in ended.stderr
    assert ended.stderr.startswith("error: ")
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_bad_flag_is_a_usage_error(tmp_path: Path) -> None:
    ended = _run(tmp_path, "up", "--decode", "0")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def test_help_names_every_command(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--help")
    assert ended.returncode == 0
    for command in ("up", "down", "status", "generate", "chat", "model", "doctor"):
        assert f" {command} " in ended.stdout
