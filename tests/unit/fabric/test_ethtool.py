"""Statistics of network devices, read from the kernel that runs, and from one that changes."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from collections.abc import Callable

import pytest

from crossdock.fabric import ethtool


def test_devices_of_this_host() -> None:
    """Whatever they have, it has names; loopback has none."""
    for _, netdev in socket.if_nameindex():
        for name, value in ethtool.statistics(netdev).items():
            assert name.isascii()
            assert name.isprintable()
            assert 0 <= value < 1 << 64
    assert ethtool.statistics("lo") == {}


@pytest.mark.parametrize("netdev", ["", "none-such", "longer-than-sixteen-bytes"])
def test_a_device_that_is_not_here_has_none(netdev: str) -> None:
    assert ethtool.statistics(netdev) == {}


NAMES = (b"rx_prio3_pause", b"tx_prio3_pause_duration", b"a" * 32)


def kernel(num_sizes: int, num_names: int, num_values: int) -> Callable[[object, int, bytes], int]:
    """Answers SIOCETHTOOL as Linux does: at the address that the request carries."""

    def ioctl(_sock: object, number: int, request: bytes) -> int:
        assert number == 0x8946
        name, address = struct.unpack("=16sQ16x", request)
        assert name.rstrip(b"\0") == b"ens1f0np0"
        (command,) = struct.unpack("=I", ctypes.string_at(address, 4))
        if command == 0x37:
            answer = struct.pack("=IIQI", command, 0, 2, num_sizes)
        elif command == 0x1B:
            strings = b"".join(name.ljust(32, b"\0") for name in NAMES[:num_names])
            answer = struct.pack("=III", command, 1, num_names) + strings
        else:
            assert command == 0x1D
            values = range(7, 7 + num_values)
            answer = struct.pack(f"=II{num_values}Q", command, num_values, *values)
        ctypes.memmove(address, answer, len(answer))
        return 0

    return ioctl


def test_names_and_values_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", kernel(3, 3, 3))
    assert ethtool.statistics("ens1f0np0") == {
        "rx_prio3_pause": 7,
        "tx_prio3_pause_duration": 8,
        "a" * 32: 9,
    }


def test_statistics_that_change_in_between_are_not_mixed_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", kernel(2, 2, 3))
    assert ethtool.statistics("ens1f0np0") == {}


def test_a_driver_without_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", kernel(0, 0, 0))
    assert ethtool.statistics("ens1f0np0") == {}
