"""The command line's errors are one line and a non-zero exit, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from crossdock.cli.main import app

WAIT_S = 120.0


def _run(tmp_path: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    program = "from crossdock.cli.main import run; run()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        input=stdin,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    return subprocess.CompletedProcess(
        ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
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


# A value each, of which some once reached a message's field, or another port than they name.
BAD_FLAGS = [
    ("up", "--decode", "0"),
    ("up", "--port", "65536"),
    ("up", "--http-port", "-1"),
    ("up", "--log-level", "loud"),
    ("up", "--kv-memory", "much"),
    ("up", "--kvstore-memory", "-1"),
    ("down", "--timeout", "-1"),
    ("generate", "--max-tokens", "99999999999"),
    ("generate", "--max-tokens", "0"),
    ("generate", "--top-k", "-1"),
    ("generate", "--seed", "18446744073709551616"),
    ("generate", "--timeout", "nan"),
    ("generate", "--timeout", "1e300"),
    ("generate", "--address", "127.0.0.1:99999"),
    ("generate", "--address", "nowhere"),
    ("chat", "--timeout", "0"),
]


@pytest.mark.parametrize(("command", "flag", "value"), BAD_FLAGS)
def test_a_bad_flag_is_a_usage_error(command: str, flag: str, value: str) -> None:
    prompt = ["hello"] if command in {"generate", "chat"} else []
    ended = CliRunner().invoke(app, [command, *prompt, flag, value])
    assert ended.exit_code == 2
    assert f"'{flag}'" in ended.output


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_an_argument_that_is_no_text_is_named(tmp_path: Path, command: str) -> None:
    ended = _run(tmp_path, command, os.fsdecode(b"caf\xe9"), "--address", "127.0.0.1:1")
    assert ended.returncode == 1
    assert ended.stderr == "error: not UTF-8: 'caf\\udce9'\n"


def test_a_prompt_on_stdin_that_is_no_text_is_named(tmp_path: Path) -> None:
    ended = _run(tmp_path, "generate", "-", "--address", "127.0.0.1:1", stdin=b"caf\xe9")
    assert ended.returncode == 1
    assert ended.stderr == "error: the prompt on stdin is not UTF-8 at byte 3\n"


def test_a_conversation_outlives_what_is_no_text(tmp_path: Path) -> None:
    ended = _run(tmp_path, "chat", "--address", "127.0.0.1:1", stdin=b"\xe9\n")
    assert ended.returncode == 0
    assert "127.0.0.1:1" in ended.stderr  # It was asked, and the answer is the router's absence.
    assert "Traceback" not in ended.stderr


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "crossdock").write_text("in the way")
    ended = _run(tmp_path, "up", "--model", str(tiny_model))
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert str(tmp_path / "crossdock") in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_help_names_every_command(tmp_path: Path) -> None:
    ended = _run(tmp_path, "--help")
    assert ended.returncode == 0
    for command in ("up", "down", "status", "generate", "chat", "model", "doctor"):
        assert f" {command} " in ended.stdout
