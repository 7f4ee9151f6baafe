"""A handoff of a small model with latent attention in FP8, prefill and decode on two devices."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.models.tiny import PRESETS, write_tiny_model
from tests.e2e.caller import Answer, Caller, one_engine, router_address, sampling
from tests.roce.fabric import FIRST, SECOND, Side
from tests.roce.packets import Capture
from tests.roce.runner import expect

# Starting five processes takes a minute where two cores are emulated.
_START_S = 400.0
_NUM_GENERATED = 12
# Five blocks of 32 positions, the last of them in part.
_PROMPT = [3 + i * 7 % 500 for i in range(150)]
_BLOCK_TOKENS = 32


def latent_fp8_handoff() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        spec = PRESETS["deepseek_v3"]
        model = write_tiny_model(Path(scratch, "model"), spec)
        options = FleetOptions(
            model,
            kvstore=False,
            kv_dtype="fp8_ds_mla",
            transport="rc",
            num_threads=1,
            kv_memory="16MiB",
            arguments={"prefill": _on(FIRST), "decode": _on(SECOND)},
        )
        fleet = Fleet(options, Path(scratch, "fleet"))
        fleet.start(timeout_s=_START_S)
        try:
            alone = one_engine(fleet, _PROMPT, _NUM_GENERATED)
            with Capture(FIRST.interface) as capture:
                handed = asyncio.run(_ask(fleet))
        finally:
            fleet.stop()
    yield f"one engine: {alone.ids}"
    yield f"handed off: {handed.ids}"
    expect(len(alone.ids) == _NUM_GENERATED, "the one engine generated too little")
    expect(handed.same == alone.same, "tokens or logits differ from the single engine's")
    mla = spec.mla
    assert mla is not None
    slot_bytes = mla.latent_rank + mla.latent_rank // 128 * 4 + mla.rope_dim * 2
    num_slots = -(-len(_PROMPT) // _BLOCK_TOKENS) * _BLOCK_TOKENS
    kv_bytes = num_slots * spec.num_layers * slot_bytes
    yield f"{FIRST.interface}: {capture.seen}; the handoff's KV are {kv_bytes} bytes"
    expect(capture.seen.num_writes > 0, "no RDMA WRITE was seen on UDP 4791")
    expect(capture.seen.written_bytes >= kv_bytes, "the KV went another way")


async def _ask(fleet: Fleet) -> Answer:
    async with Caller(router_address(fleet)) as caller:
        return await caller.generate(_PROMPT, sampling(_NUM_GENERATED))


def _on(side: Side) -> list[str]:
    """The GID's index is not given: the service takes what the doctor would."""
    return ["--rdma-device", side.port, "--verify-handoff"]
