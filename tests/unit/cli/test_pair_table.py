"""The table of pairs tells how the bytes travel and why."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict
from rich.console import Console

from crossdock.api.v1 import kv_pb2
from crossdock.cli.pair_table import pair_table


def rendered(*peers: kv_pb2.PeerStatus) -> str:
    status: dict[str, Any] = MessageToDict(
        kv_pb2.InstanceStatus(peers=peers),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(pair_table([{"instance_id": "prefill-0", "status": status}]))
    return capture.get()


def test_what_moved_is_shown_with_the_mean_exposure() -> None:
    text = rendered(
        kv_pb2.PeerStatus(
            instance_id="decode-0",
            state="ready",
            transport="shm",
            bytes_written=2_500_000,
            num_operations=17,
            num_handoffs=4,
            exposed_ns=6_000_000,
        )
    )
    for word in ("prefill-0", "decode-0", "shm", "2.5 MB", "17", "1.50 ms"):
        assert word in text
    assert "staged" not in text


def test_a_pair_that_is_staged_says_so_and_why() -> None:
    text = rendered(
        kv_pb2.PeerStatus(
            instance_id="decode-0",
            transport="tcp",
            not_shared="not offered",
            staged=True,
            staged_because="here: /dev/shm has 0 bytes left",
        )
    )
    assert "tcp, staged" in text
    assert "/dev/shm has 0 bytes left" in text
    assert "not offered" not in text
