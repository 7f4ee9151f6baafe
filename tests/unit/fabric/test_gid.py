from __future__ import annotations

from pathlib import Path

import pytest

from crossdock.fabric.devices import list_ports
from crossdock.fabric.gid import GidChoice
from tests.fakes.rdma_tree import V1, V2, GidEntry, write_port

LINK_LOCAL = "fe80:0000:0000:0000:ba59:9fff:fe12:3456"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a09:0001"
MAPPED_SECOND = "0000:0000:0000:0000:0000:ffff:0a09:0101"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0001"

# ConnectX cards list each address twice, as RoCE v1 and v2; Soft-RoCE knows v2 only.
CONNECTX: tuple[GidEntry, ...] = (
    (0, LINK_LOCAL, V1),
    (1, LINK_LOCAL, V2),
    (2, MAPPED, V1),
    (3, MAPPED, V2),
)
SOFT_ROCE: tuple[GidEntry, ...] = ((0, LINK_LOCAL, V2), (1, MAPPED, V2))


def choose(root: Path, gids: tuple[GidEntry, ...], index: int | None = None) -> GidChoice:
    write_port(root, gids=gids)
    (port,) = list_ports(root)
    return port.choose_gid(index)


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        pytest.param(CONNECTX, 3, id="IPv4-mapped among v1 and link-local"),
        pytest.param(SOFT_ROCE, 1, id="Soft-RoCE"),
        pytest.param(((0, GLOBAL, V2), (1, MAPPED, V2)), 1, id="IPv4 before IPv6"),
        pytest.param(((0, LINK_LOCAL, V2), (1, GLOBAL, V1), (2, GLOBAL, V2)), 2, id="IPv6"),
        pytest.param(((3, MAPPED_SECOND, V2), (5, MAPPED, V2)), 3, id="two of IPv4"),
    ],
)
def test_the_gid_that_others_can_reach_is_chosen(
    tmp_path: Path, gids: tuple[GidEntry, ...], index: int
) -> None:
    choice = choose(tmp_path, gids)
    assert choice.gid is not None
    assert choice.gid.index == index


@pytest.mark.parametrize(
    ("gids", "problem", "remedy"),
    [
        pytest.param((), "table is empty: eth2", "ip address add", id="empty"),
        pytest.param(((0, LINK_LOCAL, V2),), "link-local address only", "dev eth2", id="local"),
        pytest.param(((0, LINK_LOCAL, V1), (1, MAPPED, V1)), "RoCE v1 only", "v2 on", id="v1"),
    ],
)
def test_where_none_will_do_the_reason_and_the_remedy_are_named(
    tmp_path: Path, gids: tuple[GidEntry, ...], problem: str, remedy: str
) -> None:
    choice = choose(tmp_path, gids)
    assert choice.gid is None
    assert problem in choice.problem
    assert remedy in choice.remedy


@pytest.mark.parametrize(
    ("index", "problem"),
    [(0, "link-local"), (2, "is not RoCE v2"), (7, "index 7 is empty"), (4096, "is empty")],
)
def test_a_wrong_index_is_named_with_the_right_one(
    tmp_path: Path, index: int, problem: str
) -> None:
    gids = ((0, LINK_LOCAL, V2), (2, MAPPED, V1), (3, MAPPED, V2))
    choice = choose(tmp_path, gids, index)
    assert choice.gid is None
    assert problem in choice.problem
    assert "--gid-index 3" in choice.remedy


def test_a_right_index_is_kept_though_another_would_be_chosen(tmp_path: Path) -> None:
    choice = choose(tmp_path, ((1, MAPPED, V2), (2, GLOBAL, V2)), 2)
    assert choice.gid is not None
    assert str(choice.gid) == "2 (RoCE v2, 2001:db8::1)"
