"""The command line against a real fleet of four services and a tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossdock.cli.process_identity import ProcessIdentity
from tests.conftest import KV_MEMORY

pytestmark = pytest.mark.timeout(600)
WAIT_S = 120.0


class Cli:
    """Runs `crossdock` with run directories of its own; a cold fleet takes seconds to start."""

    def __init__(self, directory: Path, model: Path) -> None:
        own = {"XDG_RUNTIME_DIR": str(directory), "XDG_CACHE_HOME": str(directory)}
        self._environ = {**os.environ, **own}
        self._model = model

    def up(self, *arguments: str) -> list[str]:
        return ["up", "--model", str(self._model), "--kv-memory", KV_MEMORY, *arguments]

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        program = "from crossdock.cli.main import run; run()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        child = self.start(list(arguments))
        try:
            out, err = child.communicate(timeout=WAIT_S)
        finally:
            child.kill()
        return child.returncode, out, err

    def status(self) -> dict[str, Any]:
        code, out, err = self.run("status", "--json")
        assert code == 0, err
        report: dict[str, Any] = json.loads(out)
        return report


def _runs(pid: int) -> bool:
    """One that has ended may still wait for its parent, which need not be ours."""
    process = ProcessIdentity.of(pid)
    return process is not None and process.is_alive()


@pytest.fixture
def cli(tmp_path: Path, tiny_model: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path, tiny_model)
    yield cli
    if (tmp_path / "crossdock/fleets/default/fleet.json").exists():
        cli.run("down")


def test_a_detached_fleet_answers_and_goes_down(cli: Cli) -> None:
    code, address, err = cli.run(*cli.up("--detach"))
    assert code == 0, err
    assert address.startswith("127.0.0.1:")

    services = cli.status()["services"]
    assert sorted(s["role"] for s in services) == ["decode", "kvstore", "prefill", "router"]
    assert all(s["serving"] for s in services)

    code, _, err = cli.run(*cli.up("--detach"))
    assert code == 1
    assert "`crossdock down --name" in err

    asked = ("hello", "--max-tokens", "5", "--temperature", "0", "--ignore-eos", "--json")
    code, out, err = cli.run("generate", *asked, "--timings")
    assert code == 0, err
    first = json.loads(out)
    assert len(first["token_ids"]) == 5
    assert first["finish_reason"] == "length"
    assert first["timings"]["transport"] in ("shm", "tcp")
    assert "GB/s" in err
    # By address as by the fleet's name, and again: the same tokens.
    code, out, err = cli.run("generate", *asked, "--address", address.strip())
    assert code == 0, err
    assert json.loads(out)["token_ids"] == first["token_ids"]
    rows = [line.split() for line in cli.run("status")[1].splitlines()]
    assert ["prefill-0", "decode-0", "ready"] in [row[:3] for row in rows]

    code, out, err = cli.run("generate", "hello", "--temperature=-1")
    assert (code, out) == (1, "")
    assert "temperature" in err

    code, _, err = cli.run("down")
    assert code == 0, err
    assert not any(_runs(s["pid"]) for s in services)
    assert cli.run("status")[0] == 1


def test_weights_are_held_as_asked_and_kept(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli.run(*cli.up("--detach", "--no-kvstore", "--weight-dtype", "int4"))
    assert code == 0, err
    (kept,) = (tmp_path / "crossdock/packed").iterdir()
    assert kept.name.endswith("-int4.packed")
    code, out, _ = cli.run("status")
    assert code == 0
    (numerics,) = (line for line in out.splitlines() if line.startswith("numerics of"))
    assert "prefill-0, decode-0" in numerics
    assert "w=int4" in numerics


def test_ctrl_c_drains_a_fleet_in_the_foreground(cli: Cli) -> None:
    child = cli.start(cli.up("--no-kvstore"))
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("127.0.0.1:")
        pids = [s["pid"] for s in cli.status()["services"]]
        child.send_signal(signal.SIGINT)
        assert child.wait(WAIT_S) == 0
    finally:
        child.kill()
        child.communicate(timeout=WAIT_S)
    assert len(pids) == 3
    assert not any(_runs(pid) for pid in pids)


def test_a_service_that_dies_ends_the_foreground_with_its_log(cli: Cli) -> None:
    child = cli.start(cli.up("--no-kvstore"))
    try:
        assert child.stdout is not None
        child.stdout.readline()
        pids = {s["role"]: s["pid"] for s in cli.status()["services"]}
        os.kill(pids["decode"], signal.SIGKILL)
        _, err = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
    assert child.returncode == 1
    assert "decode-0 ended with signal 9" in err
    deadline_s = time.monotonic() + WAIT_S
    while any(_runs(pid) for pid in pids.values()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_model_that_cannot_load_is_a_clear_error(cli: Cli, tiny_model: Path) -> None:
    config = json.loads((tiny_model / "config.json").read_text(encoding="utf-8"))
    broken = tiny_model.parent / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    config["num_key_value_heads"] = 4
    (broken / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, out, err = cli.run("up", "--model", str(broken), "--no-kvstore", "--detach")
    assert (code, out) == (1, "")
    assert "ended with exit code 1" in err
    assert "Traceback" not in err
    assert cli.run("status")[0] == 1


def test_a_port_in_use_is_a_clear_error(cli: Cli) -> None:
    code, address, err = cli.run(*cli.up("--no-kvstore", "--detach"))
    assert code == 0, err
    port = address.strip().split(":")[1]
    code, _, err = cli.run(*cli.up("--no-kvstore", "--detach", "--name", "x", "--port", port))
    assert code == 1
    assert port in err
    assert "Traceback" not in err
