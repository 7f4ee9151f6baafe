"""What `ethtool -S` shows of a network device, without the program: pauses are counted only there.

sysfs has the statistics that every network device has and no others; ethtool's netlink has pauses
of the whole link, not of a priority. Reading needs no privilege.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from typing import Final

# linux/sockios.h, linux/ethtool.h
_SIOCETHTOOL: Final = 0x8946
_GET_SET_SIZES: Final = 0x37
_GET_STRINGS: Final = 0x1B
_GET_STATISTICS: Final = 0x1D
_STATISTICS_SET: Final = 1
_NAME_BYTES: Final = 32
_IFNAME_BYTES: Final = 16
# The driver writes as many as it has then, and its queues may have become more in between.
_SPARE: Final = 4_096


def statistics(netdev: str) -> dict[str, int]:
    """The driver's own statistics by name; empty when it has none, or the device is not here."""
    name = netdev.encode()
    if not 0 < len(name) < _IFNAME_BYTES:
        return {}
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            return _read(sock, name)
    except OSError:
        return {}


def _read(sock: socket.socket, name: bytes) -> dict[str, int]:
    sizes = _ask(sock, name, struct.pack("=IIQI", _GET_SET_SIZES, 0, 1 << _STATISTICS_SET, 0))
    _, _, known, count = struct.unpack_from("=IIQI", sizes)
    if not known or not count:
        return {}
    header = struct.pack("=III", _GET_STRINGS, _STATISTICS_SET, count)
    strings = _ask(sock, name, header + bytes((count + _SPARE) * _NAME_BYTES))
    header = struct.pack("=II", _GET_STATISTICS, count)
    values = _ask(sock, name, header + bytes((count + _SPARE) * 8))
    num_names, num_values = (
        struct.unpack_from("=8xI", strings)[0],
        struct.unpack_from("=4xI", values)[0],
    )
    if num_names != num_values:  # they changed in between
        return {}
    names = (
        strings[12 + index * _NAME_BYTES :][:_NAME_BYTES].split(b"\0")[0].decode("ascii", "replace")
        for index in range(num_names)
    )
    return dict(zip(names, struct.unpack_from(f"={num_values}Q", values, 8), strict=True))


def _ask(sock: socket.socket, name: bytes, message: bytes) -> bytes:
    """The message as the kernel has filled it in. The request carries its address."""
    buffer = ctypes.create_string_buffer(message, len(message))
    request = struct.pack(f"={_IFNAME_BYTES}sQ16x", name, ctypes.addressof(buffer))
    fcntl.ioctl(sock, _SIOCETHTOOL, request)
    return buffer.raw
