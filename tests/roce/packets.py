"""What two RoCEv2 devices say to each other, captured on the wire between them."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_SO_RCVBUFFORCE = 33
_ROCE_PORT = 4791
# Bytes of the headers that are of interest: Ethernet, IPv4, UDP, then the base transport header.
_BTH = 14 + 20 + 8
_BTH_BYTES = 12
_RETH_BYTES = 16
_IMMEDIATE_BYTES = 4
_CHECKSUM_BYTES = 4
# Opcodes of the reliable connection that carry bytes to be written, with what precedes the bytes
# (InfiniBand architecture specification, 9.2.1).
WRITES = {
    6: ("RDMA WRITE first", _RETH_BYTES),
    7: ("RDMA WRITE middle", 0),
    8: ("RDMA WRITE last", 0),
    9: ("RDMA WRITE last with immediate", _IMMEDIATE_BYTES),
    10: ("RDMA WRITE only", _RETH_BYTES),
    11: ("RDMA WRITE only with immediate", _RETH_BYTES + _IMMEDIATE_BYTES),
}


@dataclass(slots=True)
class Seen:
    """Packets by opcode, and the payload of those that write, in bytes."""

    opcodes: Counter[int] = field(default_factory=Counter)
    written_bytes: int = 0

    def add(self, packet: bytes) -> None:
        """One Ethernet frame; what is not RoCEv2 over IPv4 is passed over."""
        is_udp = packet[12:14] == b"\x08\x00" and packet[23] == socket.IPPROTO_UDP
        if len(packet) < _BTH + _BTH_BYTES or not is_udp or packet[14] != 0x45:
            return
        port, udp_bytes = struct.unpack_from("!HH", packet, 36)
        if port != _ROCE_PORT:
            return
        opcode, flags = packet[_BTH], packet[_BTH + 1]
        self.opcodes[opcode] += 1
        if opcode in WRITES:
            num_padding = flags >> 4 & 3
            overhead = 8 + _BTH_BYTES + WRITES[opcode][1] + num_padding + _CHECKSUM_BYTES
            self.written_bytes += udp_bytes - overhead

    @property
    def num_writes(self) -> int:
        return sum(count for opcode, count in self.opcodes.items() if opcode in WRITES)

    def __str__(self) -> str:
        named = {WRITES[code][0]: n for code, n in sorted(self.opcodes.items()) if code in WRITES}
        return f"{self.opcodes.total()} RoCEv2 packets, {named}, {self.written_bytes} bytes written"


class Capture:
    """Listens to what one interface sends, from `with` to its end; then `seen` has it all."""

    def __init__(self, interface: str) -> None:
        self.seen = Seen()
        self._interface = interface
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        self._socket.settimeout(0.5)
        self._thread = threading.Thread(target=self._listen)
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        self._socket.bind((self._interface, _ETH_P_ALL))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                packet, address = self._socket.recvfrom(128)
            except TimeoutError:
                if self._stopping.is_set():
                    return
                continue
            if address[2] == _PACKET_OUTGOING:
                self.seen.add(packet)
