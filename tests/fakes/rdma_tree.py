"""Writes what the kernel shows of RDMA ports below /sys, as recorded on real machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

V1, V2 = "IB/RoCE v1", "RoCE v2"
# Index, GID and type; the indices between hold zeroes.
GidEntry = tuple[int, str, str]


def write_port(
    root: Path,
    name: str = "mlx5_0:1",
    interface: str = "eth2",
    gids: Sequence[GidEntry] = (),
    *,
    state: str = "4: ACTIVE",
    mtu: int = 9000,
) -> Path:
    """Returns the port's folder. `name` is UCX's, `mtu` that of the interface in bytes.

    A network device that is called ib0 or alike makes it a port of InfiniBand.
    """
    device, number = name.split(":")
    folder = root / "sys/class/infiniband" / device
    port = folder / "ports" / number
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / part).mkdir(parents=True)
    (folder / "parent").write_text(f"{interface}\n", encoding="utf-8")
    (port / "state").write_text(f"{state}\n", encoding="utf-8")
    link_layer = "InfiniBand" if interface.startswith("ib") else "Ethernet"
    (port / "link_layer").write_text(f"{link_layer}\n", encoding="utf-8")
    for index in range(8):
        (port / "gids" / str(index)).write_text(":".join(["0000"] * 8) + "\n", encoding="utf-8")
    for index, address, kind in gids:
        (port / "gids" / str(index)).write_text(f"{address}\n", encoding="utf-8")
        (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n", encoding="utf-8")
        (port / "gid_attrs/ndevs" / str(index)).write_text(f"{interface}\n", encoding="utf-8")
    network = root / "sys/class/net" / interface
    network.mkdir(parents=True, exist_ok=True)
    (network / "mtu").write_text(f"{mtu}\n", encoding="utf-8")
    return port
