from __future__ import annotations

from pathlib import Path

import pytest

from crossdock.fabric.devices import list_ports, pick_port
from tests.fakes.rdma_tree import V2, write_port

MAPPED = ((1, "0000:0000:0000:0000:0000:ffff:0a09:0001", V2),)


def test_a_machine_without_rdma_has_no_ports(tmp_path: Path) -> None:
    assert list_ports(tmp_path) == []
    assert pick_port([]) is None


def test_ports_are_read_with_their_interface(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_1:1", "eth3", MAPPED, mtu=4200)
    write_port(tmp_path, "mlx5_0:1", "eth2", state="1: DOWN")
    down, up = list_ports(tmp_path)
    assert (down.name, down.is_active, down.interface) == ("mlx5_0:1", False, "eth2")
    assert (up.name, up.is_active, up.mtu_bytes) == ("mlx5_1:1", True, 4096)
    assert up.gids[0].interface == "eth3"


@pytest.mark.parametrize(("mtu", "payload"), [(9000, 4096), (4191, 2048), (1500, 1024), (100, 0)])
def test_a_packet_holds_what_the_interface_leaves_room_for(
    tmp_path: Path, mtu: int, payload: int
) -> None:
    write_port(tmp_path, gids=MAPPED, mtu=mtu)
    assert list_ports(tmp_path)[0].mtu_bytes == payload


def test_an_entry_that_the_kernel_refuses_to_show_is_unused(tmp_path: Path) -> None:
    port = write_port(tmp_path, gids=MAPPED)
    (port / "gids/1").unlink()
    (port / "gids/1").mkdir()
    assert list_ports(tmp_path)[0].gids == ()


def test_the_first_usable_port_is_picked_and_another_by_name(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:1", "eth2", MAPPED, state="1: DOWN")
    write_port(tmp_path, "mlx5_1:1", "eth3")
    write_port(tmp_path, "mlx5_2:1", "eth4", MAPPED)
    write_port(tmp_path, "mlx5_3:1", "eth5", MAPPED)
    ports = list_ports(tmp_path)

    def picked(name: str = "", gid_index: int | None = None) -> str | None:
        found = pick_port(ports, name, gid_index)
        return None if found is None else found[0].name

    assert picked() == "mlx5_2:1"
    assert picked("mlx5_3") == picked("mlx5_3:1") == "mlx5_3:1"
    assert picked("mlx5_0") is None
    assert picked("mlx5_3", gid_index=0) is None


def test_on_infiniband_the_gid_is_left_to_ucx(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:1", "ib0")
    (port,) = list_ports(tmp_path)
    assert pick_port([port]) == (port, None)
