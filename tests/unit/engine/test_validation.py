"""Every field at fault is named, with its bound."""

from __future__ import annotations

import pytest

from crossdock.engine.validation import Request, check_request
from crossdock.errors import Code, CrossdockError
from tests.fakes.engine import CONTEXT_TOKENS, NUM_BLOCKS, VOCAB_SIZE, ready
from tests.fakes.requests import request, sampling

READY = ready(1)
POOL_TOKENS = 32 * NUM_BLOCKS

WRONG = [
    (request(request_id=""), "request_id", "empty"),
    (request(request_id="x" * 129), "request_id", "128"),
    (request(request_id="é" * 65), "request_id", "130 bytes"),
    (request(handoff_id=b""), "handoff_id", "16"),
    (request(handoff_id=b"x" * 15), "handoff_id", "16"),
    (request(handoff_id=b"x" * 17), "handoff_id", "16"),
    (request(attempt=0), "attempt", "from 1"),
    (request(tenant_salt=b"x" * 65), "tenant_salt", "64"),
    (request(token_ids=[]), "token_ids", "empty"),
    (request(token_ids=[1] * CONTEXT_TOKENS), "token_ids", str(CONTEXT_TOKENS - 1)),
    (request(token_ids=[1] * POOL_TOKENS), "token_ids", str(POOL_TOKENS - 1)),
    (request(token_ids=[1, VOCAB_SIZE]), "token_ids", rf"\[1\] is {VOCAB_SIZE}"),
    (request(token_ids=[1, 2, -1]), "token_ids", r"\[2\] is -1"),
    (request(num_generated_tokens=3), "num_generated_tokens", "3 of 3 token_ids; at most 2"),
    (request(sampling=sampling(temperature=-0.1)), "sampling.temperature", "0, 2"),
    (request(sampling=sampling(temperature=2.1)), "sampling.temperature", "0, 2"),
    (request(sampling=sampling(temperature=float("nan"))), "sampling.temperature", "nan"),
    (request(sampling=sampling(temperature=float("inf"))), "sampling.temperature", "inf"),
    (request(sampling=sampling(top_p=0.0)), "sampling.top_p", r"\(0, 1\]"),
    (request(sampling=sampling(top_p=1.1)), "sampling.top_p", r"\(0, 1\]"),
    (request(sampling=sampling(top_p=float("nan"))), "sampling.top_p", "nan"),
    (request(sampling=sampling(max_tokens=0)), "sampling.max_tokens", "at least 1"),
    (request(sampling=sampling(min_tokens=5)), "sampling.min_tokens", "at most max_tokens, 4"),
    (
        request(sampling=sampling(stop_token_ids=[VOCAB_SIZE])),
        "sampling.stop_token_ids",
        str(VOCAB_SIZE - 1),
    ),
    (request(sampling=sampling(stop_token_ids=[1] * 129)), "sampling.stop_token_ids", "128"),
]

RIGHT = [
    request(),
    request(token_ids=[0, VOCAB_SIZE - 1]),
    request(num_generated_tokens=2),
    request(token_ids=[1] * (POOL_TOKENS - 1)),
    request(request_id="x" * 128, tenant_salt=b"x" * 64),
    request(sampling=sampling(temperature=2.0, top_p=0.01, min_tokens=4)),
    request(sampling=sampling(stop_token_ids=[0] * 128)),
]


@pytest.mark.parametrize(("wrong", "field", "bound"), WRONG)
def test_a_wrong_field_is_named_with_its_bound(wrong: Request, field: str, bound: str) -> None:
    with pytest.raises(CrossdockError, match=bound) as raised:
        check_request(wrong, READY, needs_handoff=True)
    assert (raised.value.code, raised.value.field) == (Code.INVALID_ARGUMENT, field)
    assert raised.value.message.startswith(field)


@pytest.mark.parametrize("right", RIGHT)
def test_what_is_within_the_bounds_passes(right: Request) -> None:
    check_request(right, READY, needs_handoff=True)


def test_the_context_may_be_the_smaller_bound() -> None:
    small = ready(1, context_tokens_max=16)
    check_request(request(token_ids=[1] * 15), small, needs_handoff=True)
    with pytest.raises(CrossdockError, match="context of 16 tokens"):
        check_request(request(token_ids=[1] * 16), small, needs_handoff=True)


def test_without_a_handoff_none_is_needed() -> None:
    check_request(request(handoff_id=b"", attempt=0), READY, needs_handoff=False)


def test_the_handoff_id_is_split_in_network_order() -> None:
    asked = request(handoff_id=bytes(range(16)))
    assert asked.handoff_high == 0x0001020304050607
    assert asked.handoff_low == 0x08090A0B0C0D0E0F
