"""The JSON body of POST /v1/chat/completions, field by field. Pure.

A field that is unknown, or known but not built, is refused by name; null means absent, as it does
in OpenAI's API, and so does the value by which a client asks for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from crossdock.errors import excerpt, invalid_argument, unsupported
from services.router.generation import InferenceCall
from services.router.prompting import ChatPrompt
from services.router.sampling import SamplingRequest

_T = TypeVar("_T")

# Known fields that are not built, and the values that ask for nothing.
_NOT_BUILT: Final[dict[str, tuple[Any, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (False,),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "web_search_options": (),
}

_KNOWN: Final = frozenset(
    {
        "ignore_eos",
        "include_stop_str_in_output",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_tokens",
        "model",
        "seed",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
        "user",
    }
)


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A parsed body: the call, and how the answer is to be given."""

    call: InferenceCall
    stream: bool
    include_usage: bool


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body; what is no such thing is INVALID_ARGUMENT on `body`."""
    try:
        value = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise invalid_argument("body", f"not valid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise invalid_argument("body", f"not valid JSON: {error}") from error
    except (ValueError, RecursionError) as error:
        raise invalid_argument("body", "a number of too many digits, or nested too deep") from error
    if not isinstance(value, dict):
        raise invalid_argument("body", "must be a JSON object")
    return value


def parse_chat(body: dict[str, Any], request_id: str) -> ChatCompletion:
    """A chat completion as the domain takes it."""
    fields = {name: value for name, value in body.items() if value is not None}
    for name, value in fields.items():
        if name in _NOT_BUILT:
            # bool is an int to Python, and 1 is not what `true` asks for.
            if not any(
                value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
                for neutral in _NOT_BUILT[name]
            ):
                raise unsupported(name)
        elif name not in _KNOWN:
            shown = excerpt(name)
            raise invalid_argument(shown, "not a field of chat completions")
    stream = _get(fields, "stream", _boolean, False)
    _get(fields, "user", _string, "")  # Nothing here depends on it.
    return ChatCompletion(
        call=InferenceCall(
            prompt=ChatPrompt(_messages(fields)),
            request_id=request_id,
            model=_get(fields, "model", _string, ""),
            sampling=_sampling(fields),
            request_id_field="x-request-id",
        ),
        stream=stream,
        include_usage=_include_usage(fields, stream),
    )


def _sampling(fields: dict[str, Any]) -> SamplingRequest:
    older = _get(fields, "max_tokens", _integer, None)
    newer = _get(fields, "max_completion_tokens", _integer, None)
    if older is not None and newer is not None and older != newer:
        raise invalid_argument(
            "max_tokens", "differs from max_completion_tokens; leave one of them out"
        )
    return SamplingRequest(
        temperature=_get(fields, "temperature", _number, None),
        top_k=_get(fields, "top_k", _integer, None),
        top_p=_get(fields, "top_p", _number, None),
        seed=_get(fields, "seed", _integer, None),
        max_tokens=older if newer is None else newer,
        min_tokens=_get(fields, "min_tokens", _integer, None),
        ignore_eos=_get(fields, "ignore_eos", _boolean, False),
        stop_token_ids=_get(fields, "stop_token_ids", _integers, ()),
        stop=_get(fields, "stop", _strings, ()),
        include_stop=_get(fields, "include_stop_str_in_output", _boolean, False),
        max_tokens_field="max_tokens" if newer is None else "max_completion_tokens",
    )


def _include_usage(fields: dict[str, Any], stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        _wrong_type("stream_options", "an object")
    if not stream:
        raise invalid_argument("stream_options", "only allowed when stream is true")
    for name in options:
        if name != "include_usage":
            shown = f"stream_options.{excerpt(name)}"
            raise invalid_argument(shown, "not a known option")
    value = options.get("include_usage")
    return False if value is None else _boolean("stream_options.include_usage", value)


def _messages(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    if "messages" not in fields:
        raise invalid_argument("messages", "absent; must hold at least one message")
    raw = fields["messages"]
    if not isinstance(raw, list):
        _wrong_type("messages", "a list")
    return tuple(_message(f"messages[{index}]", value) for index, value in enumerate(raw))


def _message(name: str, value: Any) -> tuple[str, str]:
    if not isinstance(value, dict):
        _wrong_type(name, "an object")
    for key in value:
        # A name tells speakers apart; the templates here have no place for it.
        if key not in {"role", "content"} and value[key] not in (None, [], ""):
            raise unsupported(f"{name}.{excerpt(key)}")
    for key in ("role", "content"):
        if value.get(key) is None:
            raise invalid_argument(f"{name}.{key}", "absent; must be given")
    return _string(f"{name}.role", value["role"]), _content(f"{name}.content", value["content"])


def _content(name: str, value: Any) -> str:
    """A string, or a list of parts of type text, which are put together."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _wrong_type(name, "a string or a list of text parts")
    texts: list[str] = []
    for index, part in enumerate(value):
        at = f"{name}[{index}]"
        if not isinstance(part, dict):
            _wrong_type(at, "an object")
        if part.get("type") != "text":
            raise invalid_argument(f"{at}.type", "must be 'text'; no other is built")
        texts.append(_string(f"{at}.text", part.get("text")))
    return "".join(texts)


def _get(fields: dict[str, Any], name: str, parse: Callable[[str, Any], _T], default: _T) -> _T:
    return parse(name, fields[name]) if name in fields else default


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        _wrong_type(name, "a string")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        _wrong_type(name, "true or false")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _wrong_type(name, "a number")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        _wrong_type(name, "an integer")
    return value


def _integers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        _wrong_type(name, "a list of integers")
    return tuple(_integer(f"{name}[{index}]", item) for index, item in enumerate(value))


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        _wrong_type(name, "a string or a list of strings")
    return tuple(_string(f"{name}[{index}]", item) for index, item in enumerate(value))


def _wrong_type(name: str, expected: str) -> NoReturn:
    raise invalid_argument(name, f"must be {expected}")
