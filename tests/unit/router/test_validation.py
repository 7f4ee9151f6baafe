"""Every bound, at the bound and one beyond it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossdock.errors import Code, CrossdockError
from services.router import validation
from services.router.sampling import Sampling, SamplingRequest
from services.router.validation import Limits

LIMITS = Limits(
    context_tokens_max=100, vocab_size=50, decode_pool_tokens=80, prefill_pool_tokens=64
)


def refused(call: Any, *arguments: Any) -> CrossdockError:
    with pytest.raises(CrossdockError) as caught:
        call(*arguments)
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert caught.value.field is not None
    return caught.value


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", [0.0, 2.0], [-0.01, 2.01, float("nan"), float("inf")]),
        ("top_p", [1.0, 1e-6], [0.0, -1.0, 1.01, float("nan")]),
        ("top_k", [0, 2**32 - 1], [-1, 2**32]),
        ("seed", [0, 2**64 - 1], [-1, 2**64]),
        ("max_tokens", [1, 10**9], [0, -1]),
        ("min_tokens", [0, 5], [-1]),
        ("stop", [("a",) * 16, ("x" * 1024,)], [("a",) * 17, ("",), ("x" * 1025,), ("\ud800",)]),
        ("stop_token_ids", [(1,) * 128], [(1,) * 129]),
    ],
)
def test_sampling_bounds(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        validation.check_sampling(SamplingRequest(**{field: value}))
    for value in bad:
        request = SamplingRequest(**{field: value}, field_prefix="sampling.")
        error = refused(validation.check_sampling, request)
        assert error.field is not None
        assert error.field.startswith(f"sampling.{field}")


def test_the_callers_name_of_max_tokens_is_used() -> None:
    request = SamplingRequest(max_tokens=0, max_tokens_field="max_completion_tokens")
    assert refused(validation.check_sampling, request).field == "max_completion_tokens"


@pytest.mark.parametrize(("num_tokens", "bound"), [(0, "at least one"), (64, "63"), (100, "99")])
def test_prompt_length(num_tokens: int, bound: str) -> None:
    validation.check_prompt_length(63, LIMITS, "text")
    assert bound in refused(validation.check_prompt_length, num_tokens, LIMITS, "text").message


def test_prompt_length_without_prefill_instances() -> None:
    limits = dataclasses.replace(LIMITS, prefill_pool_tokens=None)
    validation.check_prompt_length(79, limits, "text")
    assert "79" in refused(validation.check_prompt_length, 80, limits, "text").message


def complete(num_prompt_tokens: int = 10, **fields: Any) -> Sampling:
    return validation.complete_sampling(SamplingRequest(**fields), num_prompt_tokens, LIMITS, 123)


def test_defaults() -> None:
    sampling = complete()
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (123, 70, 0)
    assert complete(seed=0).seed == 0
    roomy = dataclasses.replace(LIMITS, context_tokens_max=9999, decode_pool_tokens=9999)
    assert validation.complete_sampling(SamplingRequest(), 1, roomy, 0).max_tokens == 256


def test_max_tokens_that_does_not_fit_is_refused_with_the_bound() -> None:
    assert complete(max_tokens=70).max_tokens == 70
    with pytest.raises(CrossdockError, match="at most 70"):
        complete(max_tokens=71)


def test_min_tokens_that_does_not_fit_is_refused() -> None:
    assert complete(min_tokens=70).min_tokens == 70
    with pytest.raises(CrossdockError, match="min_tokens: 71"):
        complete(min_tokens=71)


@pytest.mark.parametrize("token_id", [-1, 50])
def test_token_ids_of_the_vocabulary(token_id: int) -> None:
    validation.check_token_ids((0, 49), 50, "ids")
    error = refused(validation.check_token_ids, (0, token_id), 50, "ids")
    assert (error.field, "49" in error.message) == ("ids[1]", True)
    with pytest.raises(CrossdockError, match="stop_token_ids"):
        complete(stop_token_ids=(token_id,))


def test_request_id() -> None:
    validation.check_request_id("a" * 128)
    refused(validation.check_request_id, "ä" * 65)
    validation.check_request_id("".join(chr(code) for code in range(0x21, 0x7F)))
    for bad in ("a\nb", "a b", "\x7f", "ä", "\ud800"):
        assert "visible ASCII" in refused(validation.check_request_id, bad).message


def test_body_size() -> None:
    validation.check_body_size(10_000_000)
    assert refused(validation.check_body_size, 10_000_001).field == "request"


def test_chat() -> None:
    validation.check_chat([("system", ""), ("user", "x"), ("assistant", "y")])
    assert refused(validation.check_chat, []).field == "messages"
    assert refused(validation.check_chat, [("user", "x"), ("tool", "")]).field == "messages[1].role"
    assert refused(validation.check_chat, [("user", "\udfff")]).field == "messages[0].content"


@given(
    max_tokens=st.one_of(st.none(), st.integers(1, 200)),
    min_tokens=st.one_of(st.none(), st.integers(0, 200)),
    num_prompt_tokens=st.integers(1, 63),
)
def test_what_is_accepted_fits(
    max_tokens: int | None, min_tokens: int | None, num_prompt_tokens: int
) -> None:
    try:
        sampling = complete(num_prompt_tokens, max_tokens=max_tokens, min_tokens=min_tokens)
    except CrossdockError:
        room = LIMITS.decode_pool_tokens - num_prompt_tokens
        assert (max_tokens or 0) > room or (min_tokens or 0) > (max_tokens or room)
        return
    assert 1 <= sampling.max_tokens <= LIMITS.decode_pool_tokens - num_prompt_tokens
    assert sampling.min_tokens <= sampling.max_tokens
    assert max_tokens is None or sampling.max_tokens == max_tokens


def test_a_replay_has_what_is_left() -> None:
    sampling = complete(max_tokens=10, min_tokens=4, seed=7)
    left = sampling.after(3)
    assert (left.max_tokens, left.min_tokens, left.seed) == (7, 1, 7)
    assert sampling.after(9).min_tokens == 0
