"""Sends what is wrong, as bytes that no client library checked, and reads the refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
from google.protobuf.message import Message

from crossdock.errors import Code, CrossdockError
from crossdock.rpc.status import from_rpc_error

# A pair that nobody makes is waited for 10 s.
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Refused:
    """A call, and what its refusal must say: the field by name, and these words."""

    method: str  # "Inference/Generate"
    request: Message | bytes
    field: str | None
    words: str
    code: Code = Code.INVALID_ARGUMENT


async def mismatches(address: str, cases: Sequence[Refused]) -> list[str]:
    """Runs all at once; describes every case that was not refused as it should be."""
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        errors = await asyncio.gather(*(_error_of(channel, case) for case in cases))
    return [
        f"{case.method} {str(case.request)[:200]!r}: {error!r} on {error and error.field}, "
        f"expected {case.code.name} on {case.field}: {case.words}"
        for case, error in zip(cases, errors, strict=True)
        if error is None
        or (error.code, error.field) != (case.code, case.field)
        or case.words not in error.message
    ]


async def _error_of(channel: grpc.aio.Channel, case: Refused) -> CrossdockError | None:
    raw = case.request if isinstance(case.request, bytes) else case.request.SerializeToString()
    # A stream of one message answers unary calls as well, so one kind of call serves for all.
    call = channel.unary_stream(f"/crossdock.api.v1.{case.method}", None, None)(
        raw, timeout=TIMEOUT_S
    )
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None
