from __future__ import annotations

import resource
from pathlib import Path

import pytest

from crossdock.cli.doctor_checks import check_rdma
from crossdock.cli.finding import Finding
from tests.fakes.rdma_tree import V2, write_port

MAPPED = ((1, "0000:0000:0000:0000:0000:ffff:0a09:0001", V2),)


@pytest.fixture(autouse=True)
def _unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: infinite)


def bad(root: Path, device: str = "", gid_index: int | None = None) -> list[Finding]:
    return [f for f in check_rdma(device, gid_index, root) if f.state == "missing"]


def test_a_healthy_port_is_told_with_its_gid(tmp_path: Path) -> None:
    write_port(tmp_path, gids=MAPPED)
    port, rdma, source, memory = check_rdma("", None, tmp_path)
    assert port.fact == "ACTIVE, eth2, MTU 4096, GID 1 (RoCE v2, 10.9.0.1)"
    assert rdma.fact == "blocks may go over mlx5_0:1, GID index 1"
    assert {port.state, rdma.state, memory.state} == {"ok"}
    assert source.fact == "sysfs; the MTU of mlx5_0:1 is derived from the interface's"
    assert "crossdock[rdma]" in source.remedy


def test_without_a_device_nothing_is_in_the_way(tmp_path: Path) -> None:
    assert [finding.state for finding in check_rdma("", None, tmp_path)] == ["note", "ok"]


def test_a_link_that_is_down_is_named_with_its_interface(tmp_path: Path) -> None:
    write_port(tmp_path, gids=MAPPED, state="1: DOWN")
    (finding,) = bad(tmp_path)
    assert (finding.subject, finding.fact) == ("RDMA mlx5_0:1", "the link is DOWN (Ethernet)")
    assert "ip link set dev eth2 up" in finding.remedy


def test_a_wrong_index_is_blamed_on_the_device_it_was_given_for(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:1", "eth2", MAPPED)
    write_port(tmp_path, "mlx5_1:1", "eth3", MAPPED)
    (finding,) = bad(tmp_path, "mlx5_1", gid_index=0)
    assert finding.subject == "RDMA mlx5_1:1"
    assert "GID index 0 is empty" in finding.fact


def test_a_device_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    write_port(tmp_path, gids=MAPPED)
    (finding,) = bad(tmp_path, "mlx4_0")
    assert finding.fact == "no device mlx4_0; there are: mlx5_0:1"


def test_ports_of_different_mtus_are_a_mismatch_and_a_small_one_a_note(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:1", "eth2", MAPPED, mtu=4200)
    write_port(tmp_path, "mlx5_1:1", "eth3", MAPPED, mtu=1500)
    (finding,) = bad(tmp_path)
    assert finding.subject == "RDMA mlx5_1:1"
    assert "MTU mismatch: it takes 1024 bytes a packet (MTU 1500 of eth3)" in finding.fact
    assert "ip link set dev eth3 mtu 4200" in finding.remedy
    notes = [found for found in check_rdma("", None, tmp_path) if found.state == "note"]
    assert [found.subject for found in notes] == ["RDMA mlx5_1:1", "RDMA source"]


def test_little_locked_memory_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_port(tmp_path, gids=MAPPED)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (65_536, 65_536))
    (finding,) = bad(tmp_path)
    assert finding.fact == "64 KiB; RDMA must lock the slab"
    assert "ulimit -l unlimited" in finding.remedy
