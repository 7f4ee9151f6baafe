"""A handoff of a small model with latent attention in FP8, prefill and decode on two devices."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crossdock.api.v1 import kv_pb2
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from tests.e2e.caller import (
    Answer,
    Caller,
    one_engine,
    router_address,
    sampling,
    services,
    status_of,
)
from tests.roce.fabric import FIRST, SECOND, Side, locked_memory
from tests.roce.packets import Capture, Seen
from tests.roce.runner import expect
from tests.tiny_models.directory import PRESETS, TinyModel, write_tiny_model

# Starting five processes takes a minute where two cores are emulated.
_START_S = 400.0
_STATUS_S = 60.0
_NUM_GENERATED = 12
# Five blocks of 32 positions, the last of them in part.
_PROMPT = [3 + i * 7 % 500 for i in range(150)]
_BLOCK_TOKENS = 32
# Prints why its segment is staged, or dies of why there is none.
_OPEN_SEGMENT = """
from crossdock._native import Segment
print(Segment(transport="{transport}", segment_bytes=1 << 20, epoch=1, bind_interface="lo",
              rdma_port=("{port}", "1")).staged)
"""


@dataclass(frozen=True, slots=True)
class _Handoff:
    """One prompt twice, on one engine and handed off, and what the fleet said afterwards."""

    alone: Answer
    handed: Answer
    seen: Seen  # On the wire, from the prefill side.
    pair: kv_pb2.PeerStatus  # As prefill has it.

    def expect_same(self) -> None:
        expect(len(self.alone.ids) == _NUM_GENERATED, "the one engine generated too little")
        expect(self.handed.same == self.alone.same, "tokens or logits differ")
        expect(self.pair.transport == "rc", f"the pair is not over rc: {self.pair}")

    def __str__(self) -> str:
        return f"one engine: {self.alone.ids}, handed off: {self.handed.ids}; {self.seen}"


def latent_fp8_handoff() -> Iterator[str]:
    spec = PRESETS["deepseek_v3"]
    handoff = _hand_off(spec, "16MiB")
    yield str(handoff)
    handoff.expect_same()
    expect(not handoff.pair.staged, f"it was staged: {handoff.pair.staged_because}")
    mla = spec.mla
    assert mla is not None
    slot_bytes = mla.latent_rank + mla.latent_rank // 128 * 4 + mla.rope_dim * 2
    num_slots = -(-len(_PROMPT) // _BLOCK_TOKENS) * _BLOCK_TOKENS
    kv_bytes = num_slots * spec.num_layers * slot_bytes
    yield f"the handoff's KV are {kv_bytes} bytes"
    expect(handoff.seen.num_writes > 0, "no RDMA WRITE was seen on UDP 4791")
    expect(handoff.seen.written_bytes >= kv_bytes, "the KV went another way")


def staged_handoff() -> Iterator[str]:
    """UCX's own buffers may be locked, a slab may not: its bytes are copied through the buffers."""
    with locked_memory(96 << 20):
        handoff = _hand_off(PRESETS["deepseek_v3"], "128MiB")
    yield f"{handoff}; staged: {handoff.pair.staged_because}"
    handoff.expect_same()
    expect(handoff.pair.staged, f"it was not staged: {handoff.pair}")
    expect("ulimit -l" in handoff.pair.staged_because, handoff.pair.staged_because)
    expect(handoff.seen.opcodes.total() > 0, "nothing was seen on UDP 4791")


def no_locked_memory() -> Iterator[str]:
    """Where not even UCX's buffers may be locked, rc says so at once, and auto does without."""
    for transport in ("rc", "auto"):
        program = _OPEN_SEGMENT.format(transport=transport, port=FIRST.port)
        with locked_memory(64 << 10):
            done = subprocess.run(
                [sys.executable, "-c", program],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        last = (done.stdout + done.stderr).strip().splitlines()[-1]
        yield f"{transport}: exit code {done.returncode}, {last}"
        expect(done.returncode == int(transport == "rc"), done.stderr)
        expect("RDMA needs 96 MiB of locked memory" in last, last)


def _hand_off(spec: TinyModel, kv_memory: str) -> _Handoff:
    with tempfile.TemporaryDirectory() as scratch:
        model = write_tiny_model(Path(scratch, "model"), spec)
        options = FleetOptions(
            model,
            kvstore=False,
            kv_dtype="fp8_ds_mla",
            transport="rc",
            num_threads=1,
            kv_memory=kv_memory,
            arguments={"prefill": _on(FIRST), "decode": _on(SECOND)},
        )
        fleet = Fleet(options, Path(scratch, "fleet"))
        fleet.start(timeout_s=_START_S)
        try:
            alone = one_engine(fleet, _PROMPT, _NUM_GENERATED)
            with Capture(FIRST.interface) as capture:
                handed = asyncio.run(_ask(fleet))
            (pair,) = status_of(services(fleet, "prefill")[0], _STATUS_S).peers
        finally:
            fleet.stop()
    return _Handoff(alone, handed, capture.seen, pair)


async def _ask(fleet: Fleet) -> Answer:
    async with Caller(router_address(fleet)) as caller:
        return await caller.generate(_PROMPT, sampling(_NUM_GENERATED))


def _on(side: Side) -> list[str]:
    """The GID's index is not given: the service takes what the doctor would."""
    return ["--rdma-device", side.port, "--verify-handoff"]
