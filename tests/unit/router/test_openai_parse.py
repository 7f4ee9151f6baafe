"""JSON bodies of any shape give a call or a named error, never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdock.errors import Code, CrossdockError
from services.router.openai_parse import parse_body, parse_chat
from services.router.prompting import ChatPrompt

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "model",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "n",
        "tools",
        "logit_bias",
        "response_format",
        "other",
    ]
)


def error_of(call: Callable[..., object], *arguments: object) -> CrossdockError | None:
    try:
        call(*arguments)
    except CrossdockError as error:
        return error
    return None


@given(st.dictionaries(FIELDS, JSON, max_size=6))
def test_any_object_is_parsed_or_refused_by_name(fields: dict[str, Any]) -> None:
    error = error_of(parse_chat, {"messages": [{"role": "user", "content": "x"}]} | fields, "")
    assert error is None or (error.code is Code.INVALID_ARGUMENT and error.field)


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    error = error_of(parse_body, raw)
    assert error is None or error.field == "body"


def test_everything_that_is_built() -> None:
    raw = json.dumps(
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "u"}]},
            ],
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "seed": 9,
            "max_completion_tokens": 7,
            "max_tokens": 7,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop": ["a", "b"],
            "stop_token_ids": [4],
            "include_stop_str_in_output": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    parsed = parse_chat(parse_body(raw.encode()), "id-1")
    assert parsed.stream
    assert parsed.include_usage
    call, sampling = parsed.call, parsed.call.sampling
    assert (call.model, call.request_id) == ("m", "id-1")
    assert isinstance(call.prompt, ChatPrompt)
    assert call.prompt.messages == (("system", "s"), ("user", "u"))
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 3)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (9, 7, 2)
    assert (sampling.ignore_eos, sampling.include_stop) == (True, True)
    assert (sampling.stop, sampling.stop_token_ids) == (("a", "b"), (4,))


@pytest.mark.parametrize("value", [True, 0, 1.5, 2])
def test_n_is_one_or_refused(value: object) -> None:
    with pytest.raises(CrossdockError, match="n: not supported"):
        parse_chat({"messages": [{"role": "user", "content": "x"}], "n": value}, "")
