"""How a service process begins and ends, in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from crossdock.rpc.serving import parse_settings
from crossdock.rpc.settings import ServiceSettings

SERVICE = """
import asyncio, sys
from crossdock.errors import unreachable
from crossdock.rpc.serving import run_service
from crossdock.rpc.settings import ServiceSettings

class Echo:
    def __init__(self, settings, instance_id):
        self.settings = settings
        print("built", file=sys.stderr, flush=True)
    async def start(self):
        if self.settings.port == 1:
            raise unreachable("no such\\nthing")
        if self.settings.port == 2:
            await asyncio.Event().wait()
        return {"address": f"{self.settings.host}:7"}
    def collectors(self):
        return []
    async def drain(self):
        print("drained", self.settings.drain_timeout, file=sys.stderr)

sys.exit(run_service("echo", ServiceSettings, Echo, sys.argv[1:]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "echo.py"
    path.write_text(SERVICE)
    return path


def _start(program: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def _first_line(child: subprocess.Popen[str]) -> dict[str, object]:
    assert child.stdout is not None
    line: dict[str, object] = json.loads(child.stdout.readline())
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_is_announced_and_a_signal_drains(program: Path, number: signal.Signals) -> None:
    child = _start(program, "--instance-id", "echo-1", "--drain-timeout", "3")
    line = _first_line(child)
    metrics_address = line.pop("metrics_address")
    assert line == {
        "event": "ready",
        "role": "echo",
        "instance_id": "echo-1",
        "address": "127.0.0.1:7",
        "pid": child.pid,
    }
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=30) as reply:
        assert b"process_resident_memory_bytes" in reply.read()
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "")
    assert "drained 3.0" in err


_PARENT = """
import os, subprocess, sys
subprocess.Popen([sys.executable, *sys.argv[1:], "--parent-pid", str(os.getpid())])
sys.stdin.read()
"""


def test_a_service_drains_when_the_process_that_started_it_is_killed(program: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert _first_line(parent)["event"] == "ready"
    parent.kill()
    _, err = parent.communicate(timeout=60)  # until the service, too, has closed its stderr
    assert "drained" in err


def test_a_service_whose_parent_has_ended_before_it_looked_ends(program: Path) -> None:
    child = _start(program, "--parent-pid", "1", "--port", "2")
    _, err = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "drained" in err


def test_a_start_that_fails_leaves_one_clear_line_last(program: Path) -> None:
    child = _start(program, "--port", "1")
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (1, "")
    assert err.splitlines()[-1] == "crossdock echo: no such thing"
    assert "drained" in err
    assert "Traceback" not in err


def test_a_signal_during_the_start_ends_it(program: Path) -> None:
    child = _start(program, "--port", "2")
    assert child.stderr is not None
    while child.stderr.readline() != "built\n":
        pass
    while child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    child.communicate(timeout=60)
    assert child.returncode in (0, -signal.SIGTERM)  # the latter: before it could watch for it


def test_bad_arguments_exit_with_2(program: Path) -> None:
    child = _start(program, "--port", "70000")
    _, err = child.communicate(timeout=60)
    assert child.returncode == 2
    assert "--port" in err
    assert "65535" in err


def test_flags_win_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSDOCK_HOST", "0.0.0.0")
    monkeypatch.setenv("CROSSDOCK_PORT", "5")
    settings = parse_settings(ServiceSettings, "echo", ["--port", "6"])
    assert (settings.host, settings.port) == ("0.0.0.0", 6)


def test_a_name_is_made_up_when_none_is_given() -> None:
    settings = parse_settings(ServiceSettings, "echo", [])
    assert settings.instance_name("decode").startswith("decode-")
    named = parse_settings(ServiceSettings, "echo", ["--instance-id", "d7"])
    assert named.instance_name("decode") == "d7"


def test_a_service_takes_all_descriptors_that_it_may_have(program: Path) -> None:
    enough = _with_open_files(program, 300, 400)
    line = _first_line(enough)
    limits = Path(f"/proc/{line['pid']}/limits").read_text(encoding="utf-8")
    (files,) = (text for text in limits.splitlines() if text.startswith("Max open files"))
    assert files.split()[3:5] == ["400", "400"]
    enough.terminate()
    enough.communicate(timeout=60)
    assert enough.returncode == 0


def test_too_few_descriptors_are_named(program: Path) -> None:
    few = _with_open_files(program, 12, 12)
    out, err = few.communicate(timeout=60)
    assert (few.returncode, out) == (1, "")
    assert err == (
        "crossdock echo: 12 open files are allowed, at least 256 are needed; raise ulimit -n, or "
        "LimitNOFILE in a unit\n"
    )


def _with_open_files(program: Path, soft: int, hard: int) -> subprocess.Popen[str]:
    """The service under these limits."""
    limit = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" "$@"'
    return subprocess.Popen(
        ["sh", "-c", limit, sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
