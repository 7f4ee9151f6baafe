"""What the transfers of an instance use of this machine's fabric."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from crossdock.errors import invalid_argument
from crossdock.fabric.devices import ROOT, list_ports, pick_port

# What KV blocks travel over.
Transport = Literal["auto", "shm", "tcp", "rc"]


@dataclass(frozen=True, slots=True)
class RdmaChoice:
    """A port and the index of its GID, as the native transport takes them."""

    device: str = ""  # Empty: rc is not offered.
    gid_index: str = "auto"  # UCX's own choice, right on InfiniBand.


def choose_rdma(
    transport: Transport, device: str, gid_index: int | None, root: Path = ROOT
) -> RdmaChoice:
    """The port and GID that the doctor would pick, among those that were asked for.

    Raises where `transport` or `device` ask for RDMA and no port is usable.
    """
    if transport not in ("auto", "rc"):
        return RdmaChoice()
    ports = list_ports(root)
    picked = pick_port(ports, device, gid_index)
    if picked is not None:
        port, gid = picked
        return RdmaChoice(port.name, "auto" if gid is None else str(gid.index))
    if transport == "auto" and not device and gid_index is None:
        return RdmaChoice()
    found = ", ".join(f"{port.name} ({port.state})" for port in ports) or "none"
    raise invalid_argument(
        "rdma_device",
        f"no usable RDMA port for transport {transport!r}, rdma_device {device!r}, gid_index "
        f"{'unset' if gid_index is None else gid_index}; there are: {found}; `crossdock doctor` "
        "says what is wrong",
    )
