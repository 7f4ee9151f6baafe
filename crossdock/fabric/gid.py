"""Which GID of a port its queue pairs take. Pure: a table in, a choice or a reason out.

On Ethernet a GID is an address of the network device in two notations: RoCE v1 puts it into the
link layer's frames, RoCE v2 into UDP over IP, which routers pass on. Packets of one choice are
never heard by a queue pair of another, so both ends must choose alike.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gid:
    """One used entry of a port's table."""

    index: int
    address: ipaddress.IPv6Address
    type: str  # The kernel's words: "RoCE v2", "IB/RoCE v1".
    interface: str  # Of the network; empty on InfiniBand.

    @property
    def is_v2(self) -> bool:
        return self.type == "RoCE v2"

    @property
    def ipv4(self) -> ipaddress.IPv4Address | None:
        return self.address.ipv4_mapped

    def __str__(self) -> str:
        return f"{self.index} ({self.type}, {self.ipv4 or self.address})"


@dataclass(frozen=True, slots=True)
class GidChoice:
    """A GID, or why there is none and what to do about it."""

    gid: Gid | None
    problem: str = ""
    remedy: str = ""


def choose_gid(table: Sequence[Gid], interface: str, index: int | None = None) -> GidChoice:
    """The GID to use on an Ethernet port: RoCE v2 of an IPv4 address, else of a global IPv6 one.

    `index` is the one that was asked for; it is judged, never replaced. `interface` names the
    port's network device.
    """
    if index is not None:
        return _judge(table, interface, index)
    best = _best(table)
    if best is not None:
        return GidChoice(best)
    if not table:
        problem = f"the GID table is empty: {interface} has no address"
    elif not any(gid.is_v2 for gid in table):
        problem = "the GID table has entries of RoCE v1 only"
        return GidChoice(None, problem, "turn RoCE v2 on in the device's settings or driver")
    else:
        problem = f"{interface} has a link-local address only, which no router passes on"
    return GidChoice(None, problem, _give_address(interface))


def _judge(table: Sequence[Gid], interface: str, index: int) -> GidChoice:
    best = _best(table)
    remedy = (
        f"--gid-index {best.index}, or leave it to crossdock"
        if best is not None
        else _give_address(interface)
    )
    gid = next((gid for gid in table if gid.index == index), None)
    if gid is None:
        found = ", ".join(map(str, table)) or "none"
        return GidChoice(None, f"GID index {index} is empty; there are: {found}", remedy)
    if not gid.is_v2:
        return GidChoice(None, f"GID {gid} is not RoCE v2", remedy)
    if gid.address.is_link_local:
        return GidChoice(None, f"GID {gid} is link-local, which no router passes on", remedy)
    return GidChoice(gid)


def _best(table: Sequence[Gid]) -> Gid | None:
    usable = [gid for gid in table if gid.is_v2 and not gid.address.is_link_local]
    # By index among equals, so that a second address changes nothing.
    return min(usable, key=lambda gid: (gid.ipv4 is None, gid.index), default=None)


def _give_address(interface: str) -> str:
    return f"give it one: ip address add 192.0.2.1/24 dev {interface}, from the fabric's own range"
