from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Self

import pytest

from crossdock.cli.doctor_checks import check_rdma
from crossdock.fabric import devices, verbs
from tests.fakes.rdma_tree import V2, write_port

_MAPPED = "0000:0000:0000:0000:0000:ffff:0a09:0001"
_LOCAL = "fe80:0000:0000:0000:0000:00ff:fe00:0001"

_ENTRY_BYTES = 32


class _RefusedError(Exception):
    """As pyverbs has it when a device cannot be opened."""


@dataclass
class _Entry:
    port_num: int
    gid_index: int
    gid_type: int
    gid: str
    ndev_ifindex: int = 1  # The loopback interface, which every machine has.

    def gid_str(self) -> str:
        return self.gid


@dataclass
class _FakeVerbs:
    """Stands for the module: what a device with two ports would answer."""

    state: int = 4
    active_mtu: int = 4
    table: list[_Entry] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    num_closed: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = self

        class Context:
            def __init__(self, name: str) -> None:
                if name != "mlx5_0":
                    raise _RefusedError
                fake.opened.append(name)

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None:
                fake.num_closed += 1

            def query_port(self, _number: int) -> SimpleNamespace:
                return SimpleNamespace(state=fake.state, active_mtu=fake.active_mtu)

            def query_gid_table(self, entries_max: int) -> list[_Entry]:
                if entries_max * _ENTRY_BYTES >= 1 << 16:
                    raise _RefusedError
                return fake.table[:entries_max]

        package, device, error = (
            ModuleType(name) for name in ("pyverbs", "pyverbs.device", "pyverbs.pyverbs_error")
        )
        device.__dict__["Context"] = Context
        error.__dict__["PyverbsError"] = _RefusedError
        for module in (package, device, error):
            monkeypatch.setitem(sys.modules, module.__name__, module)


def test_a_port_is_what_verbs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = _FakeVerbs(
        table=[_Entry(1, 1, 2, _MAPPED), _Entry(1, 0, 1, _LOCAL), _Entry(2, 0, 2, _LOCAL)]
    )
    fake.install(monkeypatch)
    port = verbs.query("mlx5_0", 1)
    assert port is not None
    assert (port.state, port.mtu_bytes) == ("ACTIVE", 2048)
    assert [str(gid) for gid in port.gids] == [
        "0 (IB/RoCE v1, fe80::ff:fe00:1)",
        "1 (RoCE v2, 10.9.0.1)",
    ]
    assert {gid.interface for gid in port.gids} == {"lo"}
    assert (fake.opened, fake.num_closed) == (["mlx5_0"], 1)


@pytest.mark.parametrize(("code", "payload"), [(1, 256), (3, 1024), (5, 4096)])
def test_the_mtu_is_a_power_of_two(
    monkeypatch: pytest.MonkeyPatch, code: int, payload: int
) -> None:
    _FakeVerbs(active_mtu=code).install(monkeypatch)
    port = verbs.query("mlx5_0", 1)
    assert port is not None
    assert port.mtu_bytes == payload


def test_the_active_mtu_is_shown_rather_than_the_interfaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _FakeVerbs(active_mtu=3, table=[_Entry(1, 1, 2, _MAPPED)]).install(monkeypatch)
    monkeypatch.setattr(devices, "ROOT", tmp_path)
    write_port(tmp_path, gids=((3, _MAPPED, V2),), mtu=9000, state="1: DOWN")
    (port,) = devices.list_ports(tmp_path)
    assert (port.source, port.state, port.mtu_bytes) == ("pyverbs", "ACTIVE", 1024)
    assert [gid.index for gid in port.gids] == [1]
    found = {finding.subject: finding for finding in check_rdma("", None, tmp_path)}
    assert "MTU 1024, GID 1" in found["RDMA mlx5_0:1"].fact
    assert found["RDMA source"].fact.startswith("pyverbs")


def test_a_device_that_verbs_cannot_open_is_read_from_sysfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _FakeVerbs().install(monkeypatch)
    monkeypatch.setattr(devices, "ROOT", tmp_path)
    write_port(tmp_path, "mlx5_1:1", gids=((1, _MAPPED, V2),), mtu=4200)
    (port,) = devices.list_ports(tmp_path)
    assert (port.source, port.state, port.mtu_bytes) == ("sysfs", "ACTIVE", 4096)


def test_without_pyverbs_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyverbs.device", None)
    assert verbs.query("mlx5_0", 1) is None


def test_of_another_root_verbs_are_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = _FakeVerbs()
    fake.install(monkeypatch)
    write_port(tmp_path, gids=((1, _MAPPED, V2),))
    assert devices.list_ports(tmp_path)[0].source == "sysfs"
    assert fake.opened == []
