from __future__ import annotations

import struct

from tests.roce.packets import Seen


def packet(opcode: int, payload_bytes: int, *, port: int = 4791, extension_bytes: int = 0) -> bytes:
    """A RoCEv2 packet whose payload is padded to four bytes, as captured: its headers only."""
    padding = -payload_bytes % 4
    udp_bytes = 8 + 12 + extension_bytes + payload_bytes + padding + 4
    ethernet = bytes(12) + b"\x08\x00"
    ip = b"\x45" + bytes(8) + b"\x11" + bytes(10)
    udp = struct.pack("!HHHH", 49_152, port, udp_bytes, 0)
    return ethernet + ip + udp + bytes([opcode, padding << 4]) + bytes(10 + extension_bytes)


def test_the_payload_of_every_kind_of_write_is_counted() -> None:
    seen = Seen()
    for opcode, extension_bytes in ((6, 16), (7, 0), (8, 0), (9, 4), (10, 16), (11, 20)):
        seen.add(packet(opcode, 1022, extension_bytes=extension_bytes))
    assert seen.num_writes == 6
    assert seen.written_bytes == 6 * 1022


def test_other_operations_and_other_traffic_write_nothing() -> None:
    seen = Seen()
    seen.add(packet(17, 0))  # an acknowledgement
    seen.add(packet(16, 4096))  # what a read brings
    seen.add(packet(6, 4096, port=53))
    seen.add(b"\x00" * 60)
    assert seen.opcodes.total() == 2
    assert (seen.num_writes, seen.written_bytes) == (0, 0)
