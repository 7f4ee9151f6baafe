from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.roce import __main__ as roce
from tools.roce.cpio import Archive
from tools.roce.image import CannotBootError, Image


@pytest.fixture
def _cannot_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_cache: Path, _init: Path) -> Image:
        raise CannotBootError("no emulator; install one")

    monkeypatch.setattr(roce, "prepare", refuse)
    monkeypatch.setattr(sys, "argv", ["roce"])


@pytest.mark.usefixtures("_cannot_boot")
def test_a_guest_that_cannot_boot_fails_where_ci_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "1")
    assert roce.main() == 1
    assert capsys.readouterr().err == "roce-test: no emulator; install one\n"


@pytest.mark.usefixtures("_cannot_boot")
def test_a_guest_that_cannot_boot_is_a_reason_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert roce.main() == 0
    assert capsys.readouterr().out == "roce-test: skipped: no emulator; install one\n"


def test_an_archive_holds_its_entries_with_mode_time_and_padding() -> None:
    archive = Archive()
    archive.add_folder("bin")
    archive.add_file("bin/run", b"12345", executable=True, time_s=0x1234)
    written = archive.finish()
    entries = []
    offset = 0
    while offset < len(written):
        assert written[offset : offset + 6] == b"070701"
        fields = [int(written[offset + 6 + 8 * i :][:8], 16) for i in range(13)]
        mode, time_s, size, name_size = fields[1], fields[5], fields[6], fields[11]
        name = written[offset + 110 :][: name_size - 1].decode()
        start = (offset + 110 + name_size + 3) // 4 * 4
        entries.append((name, mode, time_s, written[start : start + size]))
        offset = (start + size + 3) // 4 * 4
    assert entries == [
        ("bin", 0o040755, 0, b""),
        ("bin/run", 0o100755, 0x1234, b"12345"),
        ("TRAILER!!!", 0, 0, b""),
    ]
