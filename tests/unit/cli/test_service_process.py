"""A service process that behaves, and the ways in which one does not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossdock.cli.errors import FleetError
from crossdock.cli.fleet_plan import ServiceSpec
from crossdock.cli.fleet_record import ServiceRecord
from crossdock.cli.service_process import ServiceProcess

WAIT_S = 60.0
READY = """
import json, os, sys, time
addresses = {"address": "127.0.0.1:1", "metrics_address": "127.0.0.1:2"}
print(json.dumps({"event": "ready", "pid": os.getpid()} | addresses), flush=True)
time.sleep(600)
"""

Start = Callable[[str], ServiceProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServiceProcess] = []

    def start_script(script: str) -> ServiceProcess:
        spec = ServiceSpec("decode", "decode-0", ("-c", script))
        started.append(ServiceProcess(spec, tmp_path))
        return started[-1]

    yield start_script
    for process in started:
        process.identity.send(signal.SIGKILL)
        assert process.wait(WAIT_S)


def _await_ready(process: ServiceProcess) -> ServiceRecord:
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if (record := process.read_ready()) is not None:
            return record
        time.sleep(0.01)
    raise AssertionError("no ready line")


def test_the_ready_line_becomes_a_record(start: Start) -> None:
    process = start(READY)
    record = _await_ready(process)
    assert (record.role, record.instance_id) == ("decode", "decode-0")
    assert record.address == "127.0.0.1:1"
    assert record.http_address == ""
    assert record.metrics_address == "127.0.0.1:2"
    assert record.process.pid == process.pid
    assert process.exit_code is None


def test_a_death_at_start_shows_the_end_of_the_log(start: Start) -> None:
    process = start("import sys; sys.stderr.write('no such model: nope\\n'); sys.exit(1)")
    assert process.wait(WAIT_S)
    with pytest.raises(FleetError, match=r"(?s)decode-0 ended with exit code 1.*no such model"):
        process.read_ready()


def test_an_empty_log_on_a_full_disk_is_explained(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start("raise SystemExit(1)")
    assert process.wait(WAIT_S)
    assert "disk" not in process.describe_death()
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=0))
    assert "the disk is full" in process.describe_death()


def test_a_death_by_signal_names_the_signal(start: Start) -> None:
    process = start("import os; os.kill(os.getpid(), 9)")
    assert process.wait(WAIT_S)
    with pytest.raises(FleetError, match="signal 9"):
        process.read_ready()


@pytest.mark.parametrize("line", ["hello", "{}", '{"event": "other"}', '{"event": "ready"}'])
def test_another_first_line_is_an_error(start: Start, line: str) -> None:
    process = start(f"print({line!r}, flush=True); import time; time.sleep(600)")
    with pytest.raises(FleetError, match="instead of its ready line"):
        _await_ready(process)


def test_half_a_line_is_not_ready(start: Start, tmp_path: Path) -> None:
    process = start(
        "import sys, time; sys.stdout.write('{\"event\"'); sys.stdout.flush(); time.sleep(600)"
    )
    deadline_s = time.monotonic() + WAIT_S
    while not (tmp_path / "decode-0.ready").read_bytes():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert process.read_ready() is None


def test_the_folder_that_one_is_in_shadows_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`services` is no rare name for a folder."""
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    spec = ServiceSpec("kvstore", "kvstore", ("-m", "services.kvstore", "--help"))
    process = ServiceProcess(spec, tmp_path)
    assert process.wait(WAIT_S)
    assert process.exit_code == 0
