"""A writer that shares no code with ours: RDMA WRITE WITH IMMEDIATE by pyverbs into a segment.

Run as a program it is the writer: `python -m tests.roce.writer` takes one JSON line that tells it
where to write, answers with its own end of the queue pair, and writes on the next line.
"""

from __future__ import annotations

import ctypes
import json
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from tests.roce.fabric import FIRST, SECOND, Side
from tests.roce.runner import expect

# Where pyverbs is. Appended to the path, so that nothing else of the distribution comes first.
DISTRIBUTION = "/usr/lib/python3/dist-packages"
_SEGMENT_BYTES = 1 << 20
_SEED = 20_261_130
_IMMEDIATE = 0xC0FFEE42
_OFFSET, _LENGTH = 12_288, 300_000
_FIRST_PSN = 77
_BOUND_S = 120.0


def payload() -> bytes:
    """What is written."""
    return random.Random(_SEED).randbytes(_LENGTH)


@dataclass(frozen=True, slots=True)
class End:
    """Half of a queue pair: its number, its port's GID, and memory that the other may write."""

    queue_pair: int
    gid: str
    address: int = 0
    remote_key: int = 0


class QueuePair:
    """A reliable connection on one side, with memory registered beside it."""

    def __init__(self, side: Side, length: int, address: int | None = None) -> None:
        # The distribution's package, which no other interpreter's packages hold.
        from pyverbs import enums
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        self._enums = enums
        self._side = side
        device, number = side.port.split(":")
        self._port = int(number)
        self._access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self._context = Context(name=device)
        self._domain = PD(self._context)
        self._queue = CQ(self._context, 16)
        self.memory = MR(self._domain, length, self._access, address=address)
        capabilities = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        self._pair = QP(
            self._domain,
            QPInitAttr(
                qp_type=enums.IBV_QPT_RC,
                scq=self._queue,
                rcq=self._queue,
                sq_sig_all=1,
                cap=capabilities,
            ),
        )
        attributes = QPAttr(port_num=self._port)
        attributes.qp_access_flags = self._access
        self._pair.to_init(attributes)

    def end(self) -> End:
        gid = str(self._context.query_gid(self._port, self._side.gid_index).gid)
        return End(self._pair.qp_num, gid, self.memory.buf, self.memory.rkey)

    def connect(self, other: End) -> None:
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

        attributes = QPAttr(port_num=self._port)
        attributes.qp_access_flags = self._access
        attributes.path_mtu = self._enums.IBV_MTU_4096
        attributes.dest_qp_num = other.queue_pair
        attributes.rq_psn = attributes.sq_psn = _FIRST_PSN
        attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 1
        attributes.min_rnr_timer = 12
        attributes.timeout = 17  # 0.5 s
        attributes.retry_cnt = attributes.rnr_retry = 7
        route = GlobalRoute(dgid=GID(other.gid), sgid_index=self._side.gid_index, hop_limit=64)
        attributes.ah_attr = AHAttr(port_num=self._port, is_global=1, gr=route)
        self._pair.to_rtr(attributes)
        self._pair.to_rts(attributes)

    def expect_immediate(self) -> None:
        """Posts what an immediate consumes; pyverbs wants an element that stays unused."""
        from pyverbs.wr import SGE, RecvWR

        element = SGE(self.memory.buf, 0, self.memory.lkey)
        self._pair.post_recv(RecvWR(num_sge=1, sg=[element]))

    def write(self, data: bytes, to: End, offset: int) -> None:
        """Returns once the other side's card has acknowledged the bytes."""
        from pyverbs.wr import SGE, SendWR

        self.memory.write(data, len(data))
        request = SendWR(
            opcode=self._enums.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            imm_data=socket.htonl(_IMMEDIATE),
            sg=[SGE(self.memory.buf, len(data), self.memory.lkey)],
            send_flags=self._enums.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(to.remote_key, to.address + offset)
        self._pair.post_send(request)
        self.completion()

    def completion(self) -> Any:
        """The next one; raises when it is none of success."""
        deadline = time.monotonic() + _BOUND_S
        while time.monotonic() < deadline:
            found, completions = self._queue.poll(1)
            if found:
                completion = completions[0]
                expect(
                    completion.status == self._enums.IBV_WC_SUCCESS,
                    f"{self._side.port}: completion with status {completion.status}",
                )
                return completion
            time.sleep(0.001)
        raise TimeoutError(f"{self._side.port}: no completion within {_BOUND_S:.0f} s")


def independent_writer() -> Iterator[str]:
    from crossdock import _native as native

    segment = native.Segment(
        transport="rc",
        segment_bytes=_SEGMENT_BYTES,
        epoch=7,
        bind_interface="lo",
        rdma_port=(SECOND.port, str(SECOND.gid_index)),
    )
    address, length = _segment_of(segment.descriptor)
    expect(length == _SEGMENT_BYTES, f"the descriptor tells of {length} bytes")
    pair = QueuePair(SECOND, length, address)
    pair.expect_immediate()
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.roce.writer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdin is not None
        assert writer.stdout is not None
        _say(writer.stdin, pair.end())
        pair.connect(_hear(writer.stdout))
        print("write", file=writer.stdin, flush=True)
        completion = pair.completion()
        expect(writer.wait(_BOUND_S) == 0, "the writer failed")
    finally:
        writer.kill()
        writer.wait()
    immediate = socket.ntohl(completion.imm_data & 0xFFFFFFFF)
    expect(immediate == _IMMEDIATE, f"the immediate is {immediate:#x}")
    expect(completion.byte_len == _LENGTH, f"{completion.byte_len} bytes are told of")
    found = ctypes.string_at(address, length)
    expected = bytearray(length)
    expected[_OFFSET : _OFFSET + _LENGTH] = payload()
    expect(found == bytes(expected), "the segment's bytes are not those that were written")
    yield f"{_LENGTH} bytes at {_OFFSET} of a segment on {SECOND.port}, immediate {immediate:#x}"


def _segment_of(descriptor: bytes) -> tuple[int, int]:
    """Address and length in bytes, past the fields that come before them."""
    offset = 4 + 8
    for kind in ("text", "int32", "text", "bytes", "bytes"):
        if kind == "int32":
            offset += 4
        else:
            offset += 4 + struct.unpack_from("<I", descriptor, offset)[0]
    address, length = struct.unpack_from("<QQ", descriptor, offset)
    return address, length


def _say(stream: IO[str], end: End) -> None:
    fields = (end.queue_pair, end.gid, end.address, end.remote_key)
    print(json.dumps(fields), file=stream, flush=True)


def _hear(stream: IO[str]) -> End:
    queue_pair, gid, address, remote_key = json.loads(stream.readline())
    return End(queue_pair, gid, address, remote_key)


def _write() -> None:
    target = _hear(sys.stdin)
    pair = QueuePair(FIRST, _LENGTH)
    _say(sys.stdout, pair.end())
    pair.connect(target)
    sys.stdin.readline()
    pair.write(payload(), target, _OFFSET)


if __name__ == "__main__":
    sys.path.append(DISTRIBUTION)
    _write()
