"""Which string of a message is not UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdock.api.v1 import inference_pb2
from crossdock.rpc.malformed import explain, find_invalid_utf8

CHAT = inference_pb2.ChatRequest.DESCRIPTOR
MARK = "MARKMARK"
BAD = b"\xff" * len(MARK)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (inference_pb2.ChatRequest(request_id=MARK), "request_id"),
        (inference_pb2.ChatRequest(model=MARK), "model"),
        (
            inference_pb2.ChatRequest(
                messages=[inference_pb2.ChatMessage(), inference_pb2.ChatMessage(content=MARK)]
            ),
            "messages[1].content",
        ),
        (
            inference_pb2.ChatRequest(sampling=inference_pb2.SamplingParams(stop=["a", MARK])),
            "sampling.stop[1]",
        ),
    ],
)
def test_the_field_is_named(request_: inference_pb2.ChatRequest, field: str) -> None:
    raw = request_.SerializeToString().replace(MARK.encode(), BAD)
    error = explain(raw, CHAT)
    assert (error.field, error.message) == (field, f"{field}: not valid UTF-8")


@given(st.binary(max_size=60))
def test_any_bytes_have_an_explanation(raw: bytes) -> None:
    assert explain(raw, CHAT).field


def test_a_good_message_has_no_fault() -> None:
    message = inference_pb2.ChatRequest(request_id="ä", messages=[inference_pb2.ChatMessage()])
    assert find_invalid_utf8(message.SerializeToString(), CHAT) is None
