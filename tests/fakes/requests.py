"""Requests that are fine, to be made wrong one field at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from crossdock import _native as native
from crossdock.api.v1 import decode_pb2, prefill_pb2
from crossdock.engine.validation import Request

HANDOFF_ID = bytes(range(16))


def sampling(**changes: Any) -> native.Sampling:
    fields: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 4}
    return native.Sampling(**(fields | changes))


def request(**changes: Any) -> Request:
    base = Request(
        request_id="r-1",
        handoff_id=HANDOFF_ID,
        attempt=1,
        token_ids=[1, 2, 3],
        num_generated_tokens=0,
        sampling=sampling(),
        tenant_salt=b"salt",
        wants_digests=False,
    )
    return replace(base, **changes)


def sampling_message() -> decode_pb2.TokenSampling:
    return decode_pb2.TokenSampling(temperature=0.0, top_p=1.0, max_tokens=3, seed=5)


def decode_request(**changes: Any) -> decode_pb2.DecodeRequest:
    fields: dict[str, Any] = {
        "request_id": "r-1",
        "attempt": 1,
        "token_ids": [1, 2, 3],
        "sampling": sampling_message(),
    }
    return decode_pb2.DecodeRequest(**(fields | changes))


def prefill_request(**changes: Any) -> prefill_pb2.PrefillRequest:
    fields: dict[str, Any] = {
        "request_id": "r-1",
        "handoff_id": HANDOFF_ID,
        "attempt": 1,
        "token_ids": [1, 2, 3],
        "sampling": sampling_message(),
        "target_instance_id": "decode-1",
        "target_epoch": 1,
    }
    return prefill_pb2.PrefillRequest(**(fields | changes))
