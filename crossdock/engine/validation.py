"""Checks a request before anything is allocated for it. Each error names the field and the bound.

The engine and the scheduler assert what is checked here, so every field passes through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from crossdock import _native as native
from crossdock.engine import limits
from crossdock.errors import invalid_argument


@dataclass(frozen=True)
class Request:
    """What a prefill or decode instance is asked, as plain values."""

    request_id: str
    handoff_id: bytes  # empty: prefilled where it is decoded
    attempt: int
    token_ids: Sequence[int]
    num_generated_tokens: int  # the last of token_ids: by an earlier attempt
    sampling: native.Sampling
    tenant_salt: bytes
    wants_digests: bool

    @property
    def handoff_high(self) -> int:
        return int.from_bytes(self.handoff_id[:8], "big")

    @property
    def handoff_low(self) -> int:
        return int.from_bytes(self.handoff_id[8:], "big")

    def task(self, sequence_id: int) -> native.Task:
        """The request as its engine takes it."""
        return native.Task(
            sequence_id=sequence_id,
            prompt=list(self.token_ids),
            num_generated_tokens=self.num_generated_tokens,
            sampling=self.sampling,
            tenant_salt=self.tenant_salt,
            wants_digests=self.wants_digests,
        )


def check_request(request: Request, ready: native.Ready, *, needs_handoff: bool) -> None:
    """Raises INVALID_ARGUMENT for the first field at fault."""
    check_text("request_id", request.request_id, limits.REQUEST_ID_BYTES_MAX)
    _check_handoff(request, needs_handoff=needs_handoff)
    if len(request.tenant_salt) > limits.TENANT_SALT_BYTES_MAX:
        raise invalid_argument(
            "tenant_salt",
            f"has {len(request.tenant_salt)} bytes; at most {limits.TENANT_SALT_BYTES_MAX}",
        )
    _check_prompt(request.token_ids, ready)
    _check_generated(request)
    _check_sampling(request.sampling, ready.vocab_size)


def check_text(field: str, value: str, bytes_max: int) -> None:
    """Not empty, and not longer than `bytes_max` in UTF-8."""
    num_bytes = len(value.encode("utf-8", errors="surrogatepass"))
    if num_bytes == 0:
        raise invalid_argument(field, "must not be empty")
    if num_bytes > bytes_max:
        raise invalid_argument(field, f"has {num_bytes} bytes; at most {bytes_max}")


def _check_handoff(request: Request, *, needs_handoff: bool) -> None:
    length = len(request.handoff_id)
    if length == 0 and not needs_handoff:
        return
    if length != limits.HANDOFF_ID_BYTES:
        raise invalid_argument(
            "handoff_id", f"has {length} bytes; must have {limits.HANDOFF_ID_BYTES}"
        )
    if request.attempt < 1:
        raise invalid_argument("attempt", "is 0; attempts count from 1")


def _check_prompt(token_ids: Sequence[int], ready: native.Ready) -> None:
    length = len(token_ids)
    if length == 0:
        raise invalid_argument("token_ids", "must not be empty")
    if length >= ready.context_tokens_max:
        raise invalid_argument(
            "token_ids",
            f"has {length} tokens; the context of {ready.context_tokens_max} tokens holds a prompt "
            f"of at most {ready.context_tokens_max - 1}",
        )
    pool_tokens = ready.num_blocks * limits.BLOCK_TOKENS
    if length >= pool_tokens:
        raise invalid_argument(
            "token_ids",
            f"has {length} tokens; the KV memory of {pool_tokens} tokens holds a prompt of at most "
            f"{pool_tokens - 1}",
        )
    _check_token_ids("token_ids", token_ids, ready.vocab_size)


def _check_generated(request: Request) -> None:
    length = len(request.token_ids)
    if request.num_generated_tokens >= length:
        raise invalid_argument(
            "num_generated_tokens",
            f"is {request.num_generated_tokens} of {length} token_ids; at most {length - 1}, since "
            "the first is the prompt's",
        )


def _check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        index = next(i for i, token in enumerate(token_ids) if not 0 <= token < vocab_size)
        raise invalid_argument(
            field, f"[{index}] is {token_ids[index]}; ids are in [0, {vocab_size - 1}]"
        )


def _check_sampling(sampling: native.Sampling, vocab_size: int) -> None:
    temperature = sampling.temperature
    if not (math.isfinite(temperature) and 0.0 <= temperature <= limits.TEMPERATURE_MAX):
        raise invalid_argument(
            "sampling.temperature",
            f"is {temperature:g}; must be in [0, {limits.TEMPERATURE_MAX:g}]",
        )
    if not (math.isfinite(sampling.top_p) and 0.0 < sampling.top_p <= 1.0):
        raise invalid_argument("sampling.top_p", f"is {sampling.top_p:g}; must be in (0, 1]")
    if sampling.max_tokens < 1:
        raise invalid_argument("sampling.max_tokens", "is 0; must be at least 1")
    if sampling.min_tokens > sampling.max_tokens:
        raise invalid_argument(
            "sampling.min_tokens",
            f"is {sampling.min_tokens}; must be at most max_tokens, {sampling.max_tokens}",
        )
    stop_ids = sampling.stop_token_ids
    if len(stop_ids) > limits.STOP_TOKEN_IDS_MAX:
        raise invalid_argument(
            "sampling.stop_token_ids",
            f"has {len(stop_ids)} ids; at most {limits.STOP_TOKEN_IDS_MAX}",
        )
    _check_token_ids("sampling.stop_token_ids", stop_ids, vocab_size)
