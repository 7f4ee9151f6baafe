from __future__ import annotations

from pathlib import Path

import pytest

from crossdock.errors import Code, CrossdockError
from crossdock.fabric.choice import RdmaChoice, Transport, choose_rdma
from tests.fakes.rdma_tree import V2, write_port

MAPPED = ((3, "0000:0000:0000:0000:0000:ffff:0a09:0001", V2),)


def test_the_doctors_choice_is_taken_where_nothing_is_asked_for(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:1", "eth2", state="1: DOWN")
    write_port(tmp_path, "mlx5_1:1", "eth3", MAPPED)
    for transport in ("auto", "rc"):
        assert choose_rdma(transport, "", None, tmp_path) == RdmaChoice("mlx5_1:1", "3")


def test_without_a_usable_port_only_an_automatic_choice_goes_on(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:1", "eth2")
    assert choose_rdma("auto", "", None, tmp_path) == RdmaChoice()
    asked: list[tuple[Transport, str, int | None]] = [
        ("rc", "", None),
        ("auto", "mlx5_0:1", None),
        ("auto", "", 3),
    ]
    for transport, device, gid_index in asked:
        with pytest.raises(CrossdockError) as raised:
            choose_rdma(transport, device, gid_index, tmp_path)
        assert raised.value.code is Code.INVALID_ARGUMENT
        assert "mlx5_0:1 (ACTIVE)" in str(raised.value)


def test_other_transports_use_no_port(tmp_path: Path) -> None:
    write_port(tmp_path, gids=MAPPED)
    assert choose_rdma("shm", "", None, tmp_path) == RdmaChoice()
    assert choose_rdma("tcp", "mlx5_0", 3, tmp_path) == RdmaChoice()


def test_on_infiniband_ucx_takes_its_gid(tmp_path: Path) -> None:
    write_port(tmp_path, "mlx5_0:2", "ib0")
    assert choose_rdma("rc", "mlx5_0", None, tmp_path) == RdmaChoice("mlx5_0:2", "auto")
