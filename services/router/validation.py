"""Every bound on what a caller may ask. Pure; each error names the field and the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from crossdock.errors import CrossdockError, excerpt, invalid_argument
from services.router.sampling import Sampling, SamplingRequest, StopRules

BODY_BYTES_MAX: Final = 10_000_000
REQUEST_ID_BYTES_MAX: Final = 128
TEMPERATURE_MAX: Final = 2.0
SEED_MAX: Final = 2**64 - 1
TOP_K_MAX: Final = 2**32 - 1
STOP_TOKEN_IDS_MAX: Final = 128
STOP_STRINGS_MAX: Final = 16
STOP_STRING_BYTES_MAX: Final = 1_024
TOKENIZE_BYTES_MAX: Final = 1_000_000
CHAT_MESSAGES_MAX: Final = 4_096
CHAT_ROLES: Final = ("system", "user", "assistant")
MAX_TOKENS_DEFAULT: Final = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What the fleet can hold now, in tokens. Pools are those of the largest ready instance.

    `prefill_pool_tokens` is None where decode instances compute the prompts themselves.
    """

    context_tokens_max: int
    vocab_size: int
    decode_pool_tokens: int
    prefill_pool_tokens: int | None


def check_body_size(num_bytes: int) -> None:
    """The size of one request as it arrived."""
    if num_bytes > BODY_BYTES_MAX:
        raise invalid_argument("request", f"{num_bytes} bytes; must be at most {BODY_BYTES_MAX}")


def check_request_id(request_id: str, field: str = "request_id") -> None:
    """Its length, and that it reads alike in a header, in metadata of gRPC and in a log line."""
    size = len(request_id.encode("utf-8", errors="surrogatepass"))
    if size > REQUEST_ID_BYTES_MAX:
        raise invalid_argument(field, f"{size} bytes; must be at most {REQUEST_ID_BYTES_MAX}")
    if not all("!" <= character <= "~" for character in request_id):
        raise invalid_argument(field, "must hold visible ASCII characters only, and no spaces")


def check_model(model: str, served: str) -> None:
    """Empty means the fleet's model."""
    if model and model != served:
        raise invalid_argument(
            "model", f"{excerpt(model)!r} is not served here; must be {served!r} or empty"
        )


def check_text(text: str, field: str) -> None:
    """Not empty, and encodable: JSON can smuggle in half of a surrogate pair."""
    if not text:
        raise invalid_argument(field, "empty; must hold at least one character")
    check_utf8(text, field)


def check_utf8(text: str, field: str) -> None:
    """That the text has an encoding at all."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid_argument(
            field, f"not valid Unicode at character {error.start} (a lone surrogate)"
        ) from error


def check_text_bytes(text: str, bytes_max: int, field: str) -> None:
    """The size of a text that is going to be tokenised."""
    num_bytes = len(text.encode("utf-8"))
    if num_bytes > bytes_max:
        raise invalid_argument(field, f"{num_bytes} bytes; must be at most {bytes_max}")


def check_chat(messages: Sequence[tuple[str, str]], field: str = "messages") -> None:
    """Messages are (role, content)."""
    if not messages:
        raise invalid_argument(field, "empty; must hold at least one message")
    if len(messages) > CHAT_MESSAGES_MAX:
        raise invalid_argument(
            field, f"{len(messages)} messages; must be at most {CHAT_MESSAGES_MAX}"
        )
    for index, (role, content) in enumerate(messages):
        if role not in CHAT_ROLES:
            name = f"{field}[{index}].role"
            raise invalid_argument(
                name, f"{excerpt(role)!r}; must be one of {', '.join(CHAT_ROLES)}"
            )
        check_utf8(content, f"{field}[{index}].content")


def check_token_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Every id is one of the model's."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            name = f"{field}[{index}]"
            raise invalid_argument(
                name, f"{token_id}; must be in [0, {vocab_size - 1}] (the vocabulary)"
            )


def check_sampling(request: SamplingRequest) -> StopRules:
    """The bounds that need no knowledge of the fleet."""
    _check_number(request, "temperature", request.temperature, 0.0, TEMPERATURE_MAX)
    _check_top_p(request)
    _check_int(request, "top_k", request.top_k, 0, TOP_K_MAX)
    _check_int(request, "seed", request.seed, 0, SEED_MAX)
    _check_int(request, "max_tokens", request.max_tokens, 1, None)
    _check_int(request, "min_tokens", request.min_tokens, 0, None)
    if (
        request.max_tokens is not None
        and request.min_tokens is not None
        and request.min_tokens > request.max_tokens
    ):
        name = request.field("min_tokens")
        raise invalid_argument(
            name,
            f"{request.min_tokens}; must be at most {request.field('max_tokens')} "
            f"({request.max_tokens})",
        )
    if len(request.stop_token_ids) > STOP_TOKEN_IDS_MAX:
        name = request.field("stop_token_ids")
        raise invalid_argument(
            name, f"{len(request.stop_token_ids)} ids; must be at most {STOP_TOKEN_IDS_MAX}"
        )
    _check_stop_strings(request)
    return StopRules(request.stop, request.include_stop)


def _check_number(
    request: SamplingRequest, name: str, value: float | None, low: float, high: float
) -> None:
    if value is not None and not (math.isfinite(value) and low <= value <= high):
        field = request.field(name)
        raise invalid_argument(field, f"{value}; must be a number in [{low:g}, {high:g}]")


def _check_top_p(request: SamplingRequest) -> None:
    value = request.top_p
    if value is not None and not (math.isfinite(value) and 0.0 < value <= 1.0):
        field = request.field("top_p")
        raise invalid_argument(field, f"{value}; must be a number in (0, 1]")


def _check_int(
    request: SamplingRequest, name: str, value: int | None, low: int, high: int | None
) -> None:
    if value is None or (low <= value and (high is None or value <= high)):
        return
    field = request.field(name)
    bound = f"at least {low}" if high is None else f"in [{low}, {high}]"
    raise invalid_argument(field, f"{value}; must be {bound}")


def _check_stop_strings(request: SamplingRequest) -> None:
    if len(request.stop) > STOP_STRINGS_MAX:
        name = request.field("stop")
        raise invalid_argument(
            name, f"{len(request.stop)} strings; must be at most {STOP_STRINGS_MAX}"
        )
    for index, text in enumerate(request.stop):
        name = f"{request.field('stop')}[{index}]"
        check_text(text, name)
        size = len(text.encode("utf-8"))
        if size > STOP_STRING_BYTES_MAX:
            raise invalid_argument(name, f"{size} bytes; must be at most {STOP_STRING_BYTES_MAX}")


def check_prompt_length(num_tokens: int, limits: Limits, field: str) -> None:
    """At least one token, and room for at least one more in the context and in a pool."""
    if num_tokens == 0:
        raise invalid_argument(field, "empty; must hold at least one token")
    if num_tokens >= limits.context_tokens_max:
        raise invalid_argument(
            field,
            f"{num_tokens} tokens; must be at most {limits.context_tokens_max - 1} "
            f"(the context of {limits.context_tokens_max} less one to generate)",
        )
    pool_tokens = _prompt_pool_tokens(limits)
    if num_tokens > pool_tokens:
        raise invalid_argument(
            field, f"{num_tokens} tokens; must be at most {pool_tokens} (the largest KV pool)"
        )


def _prompt_pool_tokens(limits: Limits) -> int:
    decode_tokens = limits.decode_pool_tokens - 1
    if limits.prefill_pool_tokens is None:
        return decode_tokens
    return min(decode_tokens, limits.prefill_pool_tokens - 1)


def complete_sampling(
    request: SamplingRequest, num_prompt_tokens: int, limits: Limits, drawn_seed: int
) -> Sampling:
    """Applies defaults and the bounds that depend on the prompt, which is checked already.

    An absent max_tokens is cut to what fits; one that was asked for is kept or refused.
    """
    check_token_ids(request.stop_token_ids, limits.vocab_size, request.field("stop_token_ids"))
    room_tokens = min(limits.context_tokens_max, limits.decode_pool_tokens) - num_prompt_tokens
    assert room_tokens >= 1
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = min(max(MAX_TOKENS_DEFAULT, request.min_tokens or 0), room_tokens)
    elif max_tokens > room_tokens:
        raise _no_room(request, max_tokens, num_prompt_tokens, limits)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        name = request.field("min_tokens")
        raise invalid_argument(
            name, f"{min_tokens}; must be at most {max_tokens} (what fits the context)"
        )
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=request.top_k or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=drawn_seed if request.seed is None else request.seed,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=request.ignore_eos,
        stop_token_ids=request.stop_token_ids,
    )


def _no_room(
    request: SamplingRequest, max_tokens: int, num_prompt_tokens: int, limits: Limits
) -> CrossdockError:
    name = request.field("max_tokens")
    context_binds = limits.context_tokens_max <= limits.decode_pool_tokens
    bound = limits.context_tokens_max if context_binds else limits.decode_pool_tokens
    what = "context" if context_binds else "largest KV pool"
    return invalid_argument(
        name,
        f"{max_tokens}; must be at most {bound - num_prompt_tokens} "
        f"(the {what} of {bound} tokens less {num_prompt_tokens} of the prompt)",
    )
