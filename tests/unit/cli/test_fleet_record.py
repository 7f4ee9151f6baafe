from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from crossdock.cli import fleet_record
from crossdock.cli.errors import FleetError
from crossdock.cli.fleet_record import FleetRecord, ServiceRecord
from crossdock.cli.process_identity import ProcessIdentity


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetRecord:
    """A record whose only service is this test's own process."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    addresses = ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    service = ServiceRecord("router", "router", process, *addresses, Path("log"))
    return FleetRecord("default", Path("/models/m"), (service,))


def _save(record: FleetRecord) -> Path:
    directory = fleet_record.run_directory(record.name)
    directory.mkdir(parents=True)
    fleet_record.save(record, directory)
    return directory


def test_a_record_survives_the_file(record: FleetRecord) -> None:
    directory = _save(record)
    assert fleet_record.load(directory) == record
    assert fleet_record.find("default") == record
    assert [path.name for path in directory.iterdir()] == ["fleet.json"]


def test_a_fleet_whose_processes_are_gone_is_not_found(record: FleetRecord) -> None:
    gone = replace(record.services[0], process=ProcessIdentity(os.getpid(), 1))
    _save(replace(record, services=(gone,)))
    with pytest.raises(FleetError, match=r"none runs.*crossdock up"):
        fleet_record.find("default")
    assert fleet_record.all_running() == []


def test_an_unknown_name_is_told_which_fleets_run(record: FleetRecord) -> None:
    _save(record)
    with pytest.raises(FleetError, match="running: default"):
        fleet_record.find("other")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "x"}', json.dumps({"services": [{}]})])
def test_a_damaged_record_is_named(record: FleetRecord, text: str) -> None:
    directory = _save(record)
    (directory / "fleet.json").write_text(text, encoding="utf-8")
    with pytest.raises(FleetError, match=r"fleet\.json is damaged"):
        fleet_record.load(directory)


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a" * 65, "ä"])
def test_names_stay_inside_the_folder(name: str) -> None:
    with pytest.raises(FleetError, match="no name for a fleet"):
        fleet_record.run_directory(name)


def test_without_a_runtime_folder_the_cache_is_used() -> None:
    expected = Path.home() / ".cache/crossdock/fleets"
    assert fleet_record.fleets_directory({}) == expected
    assert fleet_record.fleets_directory({"XDG_RUNTIME_DIR": "relative"}) == expected
