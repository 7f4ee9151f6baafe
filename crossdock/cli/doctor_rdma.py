"""What keeps blocks from going over RDMA, and how to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crossdock.cli.finding import Finding
from crossdock.fabric.devices import Port, pick_port

_JUMBO_MTU_BYTES = 4200


def check_port(port: Port, gid_index: int | None) -> Finding:
    """One port. `gid_index` is what the user asked for."""
    subject = f"RDMA {port.name}"
    if not port.is_active:
        fact = f"the link is {port.state}"
        remedy = "plug the cable in, or start a subnet manager"
        if port.is_roce:
            remedy = f"ip link set dev {port.interface} up, then look at cable and switch"
        return Finding(subject, "missing", f"{fact} ({port.link_layer})", remedy)
    if not port.is_roce:
        return Finding(subject, "ok", f"ACTIVE, {port.link_layer}")
    choice = port.choose_gid(gid_index)
    if choice.gid is None:
        return Finding(subject, "missing", choice.problem, choice.remedy)
    fact = f"ACTIVE, {port.interface}, MTU {port.mtu_bytes}, GID {choice.gid}"
    if port.mtu_bytes < 4096:
        remedy = (
            f"ip link set dev {port.interface} mtu {_JUMBO_MTU_BYTES} carries 4096 bytes a packet; "
            "every switch and peer must, too"
        )
        return Finding(subject, "note", f"{fact} ({_mtu(port)})", remedy)
    return Finding(subject, "ok", fact)


def check_usable(ports: Sequence[Port], device: str, gid_index: int | None) -> Iterator[Finding]:
    """What transfers would take of these ports."""
    picked = pick_port(ports, device, gid_index)
    if picked is not None:
        port, gid = picked
        fact = port.name if gid is None else f"{port.name}, GID index {gid.index}"
        yield Finding("RDMA", "ok", f"blocks may go over {fact}")
    elif not ports:
        yield Finding("RDMA", "note", "no device", "KV blocks go over shared memory and TCP")
    elif device and not any(device in (port.name, port.device) for port in ports):
        found = ", ".join(port.name for port in ports)
        yield Finding("RDMA", "missing", f"no device {device}; there are: {found}")
    else:
        remedy = "mend the ports above, or let KV blocks go over shared memory and TCP"
        yield Finding("RDMA", "note", "no port is usable", remedy)


def check_source(ports: Sequence[Port]) -> Iterator[Finding]:
    """Who told of the ports."""
    derived = [port.name for port in ports if port.source == "sysfs"]
    if derived:
        fact = f"sysfs; the MTU of {', '.join(derived)} is derived from the interface's"
        remedy = "pip install 'crossdock[rdma]' or python3-pyverbs lets verbs be asked, by who may"
        yield Finding("RDMA source", "note", fact, remedy)
    elif ports:
        yield Finding("RDMA source", "ok", "pyverbs: state, active MTU and GIDs")


def check_mtus(ports: Sequence[Port]) -> Iterator[Finding]:
    """Peers send as much a packet as their own port carries, and what is longer is dropped."""
    roce = [port for port in ports if port.is_active and port.is_roce]
    largest = max((port.mtu_bytes for port in roce), default=0)
    for port in roce:
        if port.mtu_bytes < largest:
            other = next(other for other in roce if other.mtu_bytes == largest)
            yield Finding(
                f"RDMA {port.name}",
                "missing",
                f"MTU mismatch: it takes {port.mtu_bytes} bytes a packet ({_mtu(port)}), "
                f"{other.name} sends {other.mtu_bytes} ({_mtu(other)})",
                f"ip link set dev {port.interface} mtu {other.interface_mtu_bytes}, "
                "and the same on every peer and switch",
            )


def _mtu(port: Port) -> str:
    return f"MTU {port.interface_mtu_bytes} of {port.interface}"
