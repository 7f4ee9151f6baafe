"""What the verbs library says of a port, asked through pyverbs where that can be imported.

pyverbs is the extra `rdma`, or the distribution's python3-pyverbs. It knows the MTU that queue
pairs use, which the kernel shows nowhere below /sys.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from crossdock.fabric.gid import Gid

# enum ibv_port_state.
_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
# enum ibv_gid_type; the kernel's files have one name for the other two.
_GID_TYPE_ROCE_V2 = 2
# Of 32 bytes each; what the kernel is asked to fill holds less than 64 KiB.
_TABLE_ENTRIES_MAX = 1024


@dataclass(frozen=True, slots=True)
class VerbsPort:
    """One port as it is now."""

    state: str
    mtu_bytes: int  # Payload of one packet.
    gids: tuple[Gid, ...]


def query(device: str, number: int) -> VerbsPort | None:
    """None where there is no pyverbs, or where it cannot open the device."""
    try:
        from pyverbs.device import Context
        from pyverbs.pyverbs_error import PyverbsError
    except ImportError:
        return None
    try:
        with Context(name=device) as context:
            port = context.query_port(number)
            table = context.query_gid_table(_TABLE_ENTRIES_MAX)
    except PyverbsError:
        return None
    gids = (
        Gid(
            entry.gid_index,
            ipaddress.IPv6Address(entry.gid_str()),
            "RoCE v2" if entry.gid_type == _GID_TYPE_ROCE_V2 else "IB/RoCE v1",
            _interface(entry.ndev_ifindex),
        )
        for entry in table
        if entry.port_num == number
    )
    # enum ibv_mtu counts from 1, which is 256 bytes, in powers of two.
    mtu_bytes = 128 << port.active_mtu
    return VerbsPort(
        _STATES[port.state] if port.state < len(_STATES) else "unknown",
        mtu_bytes,
        tuple(sorted(gids, key=lambda gid: gid.index)),
    )


def _interface(index: int) -> str:
    """Its name; empty where a GID has none, as on InfiniBand."""
    try:
        return socket.if_indextoname(index) if index else ""
    except OSError:
        return ""
