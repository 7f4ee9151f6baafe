"""Devices and ports: verbs' word where pyverbs is there to ask, else the kernel's files below /sys.

Nothing is changed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crossdock.fabric import verbs
from crossdock.fabric.gid import Gid, GidChoice, choose_gid

ROOT = Path("/")
# What the kernel reserves around a packet's payload: the IP header (40), UDP (8), the base header
# (12), extensions for XRC (4) and atomics (28), the checksum (4).
_HEADER_BYTES = 96
_MTUS_BYTES = (4096, 2048, 1024, 512, 256)


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA device."""

    device: str
    number: int
    state: str  # "ACTIVE", "DOWN", ...
    link_layer: str  # "Ethernet" or "InfiniBand"
    interface: str  # The network device of an Ethernet port.
    interface_mtu_bytes: int  # 0: unknown
    mtu_bytes: int  # Payload of one packet; 0: unknown
    gids: tuple[Gid, ...]
    source: Literal[
        "pyverbs", "sysfs"
    ]  # Of state, MTU and GIDs; sysfs has the interface's MTU only

    @property
    def name(self) -> str:
        """As UCX calls it."""
        return f"{self.device}:{self.number}"

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def is_roce(self) -> bool:
        return self.link_layer == "Ethernet"

    def choose_gid(self, index: int | None = None) -> GidChoice:
        return choose_gid(self.gids, self.interface, index)


def list_ports(root: Path = ROOT) -> list[Port]:
    """Every port of every device, by name."""
    folder = root / "sys/class/infiniband"
    if not folder.is_dir():
        return []
    return [
        _read_port(root, device.name, port)
        for device in sorted(folder.iterdir())
        for port in sorted((device / "ports").glob("*"))
    ]


def pick_port(
    ports: Sequence[Port], name: str = "", gid_index: int | None = None
) -> tuple[Port, Gid | None] | None:
    """The port that transfers take, and its GID: the one named, or the first that is usable.

    None when there is none. On InfiniBand UCX chooses the GID.
    """
    for port in ports:
        if not port.is_active or (name and name not in (port.name, port.device)):
            continue
        if not port.is_roce:
            return port, None
        gid = port.choose_gid(gid_index).gid
        if gid is not None:
            return port, gid
    return None


def _read_port(root: Path, device: str, folder: Path) -> Port:
    number = int(folder.name)
    # pyverbs speaks of this machine alone.
    asked = verbs.query(device, number) if root == ROOT else None
    gids = asked.gids if asked is not None else tuple(_read_gids(folder))
    interface = next((gid.interface for gid in gids if gid.interface), "")
    if not interface:
        # A port without a GID. Soft-RoCE names its network device as its parent.
        interface = text_of(root / "sys/class/infiniband" / device / "parent") or _of_bus(
            root / "sys/class/infiniband" / device
        )
    mtu = text_of(root / "sys/class/net" / interface / "mtu") if interface else ""
    interface_mtu_bytes = int(mtu or 0)
    return Port(
        device=device,
        number=number,
        state=(asked.state if asked else text_of(folder / "state").split(": ")[-1]) or "unknown",
        link_layer=text_of(folder / "link_layer") or "unknown",
        interface=interface,
        interface_mtu_bytes=interface_mtu_bytes,
        mtu_bytes=asked.mtu_bytes if asked else _payload_bytes(interface_mtu_bytes),
        gids=gids,
        source="pyverbs" if asked else "sysfs",
    )


def _payload_bytes(interface_mtu_bytes: int) -> int:
    """Of one packet, as far as the interface's MTU leaves room for it; 0: unknown."""
    fitting = (mtu for mtu in _MTUS_BYTES if mtu + _HEADER_BYTES <= interface_mtu_bytes)
    return next(fitting, 0)


def _of_bus(device: Path) -> str:
    """The network device on the same function of the bus."""
    return next((path.name for path in sorted((device / "device/net").glob("*"))), "")


def _read_gids(port: Path) -> list[Gid]:
    found = []
    for path in (port / "gids").glob("*"):
        text = text_of(path)
        if not text:
            continue
        address = ipaddress.IPv6Address(text)
        if not int(address):
            continue
        kind = text_of(port / "gid_attrs/types" / path.name)
        interface = text_of(port / "gid_attrs/ndevs" / path.name)
        found.append(Gid(int(path.name), address, kind, interface))
    return sorted(found, key=lambda gid: gid.index)


def text_of(path: Path) -> str:
    """Its one line; nothing for what is absent or gone, or not in use, which is an error too."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
