from __future__ import annotations

import resource
from pathlib import Path

import pytest

from crossdock.cli import doctor_checks
from crossdock.cli.doctor_checks import (
    check_cpu,
    check_locked_memory,
    check_memory,
    check_shared_memory,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("proc", "sys", "dev/shm"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_a_cpu_without_avx2_is_noted(root: Path) -> None:
    (root / "proc/cpuinfo").write_text("flags\t\t: fpu sse2\n", encoding="utf-8")
    assert next(check_cpu(root)).state == "note"
    (root / "proc/cpuinfo").write_text("flags\t\t: fpu avx2 fma\n", encoding="utf-8")
    found = next(check_cpu(root))
    assert (found.state, found.fact) == ("ok", "avx2, fma")


def test_memory_and_huge_pages_are_read(root: Path) -> None:
    text = "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nHugePages_Total: 8\nHugePages_Free: 3\n"
    (root / "proc/meminfo").write_text(text, encoding="utf-8")
    memory, huge = check_memory(root)
    assert (memory.state, memory.fact) == ("ok", "4.0 GiB available of 8.0")
    assert huge.fact == "3 free of 8"


def test_little_memory_is_noted(root: Path) -> None:
    (root / "proc/meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 1024 kB\n")
    memory, huge = check_memory(root)
    assert memory.state == huge.state == "note"
    assert memory.remedy


def test_locked_memory_matters_with_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65_536, 65_536))
    assert check_locked_memory(has_rdma=True).state == "missing"
    assert check_locked_memory(has_rdma=False).state == "ok"


def test_without_dev_shm_a_fleet_cannot_run(root: Path) -> None:
    assert check_shared_memory(root).state in ("ok", "note")
    (root / "dev/shm").rmdir()
    assert check_shared_memory(root).state == "missing"


def test_a_listing_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ucx_info"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor_checks, "_LISTING_S", 0.2)
    found = {finding.subject: finding for finding in doctor_checks.check_ucx()}
    assert found["UCX transports"].state == "note"
    assert "did not end within 0.2 s" in found["UCX transports"].fact
    assert "locked memory" in found["UCX transports"].remedy
