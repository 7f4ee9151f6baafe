"""The JSON that OpenAI's clients expect. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from crossdock.errors import Code, CrossdockError
from services.router.output import Ending, FinishReason, Usage

_ERROR_TYPE: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}

SSE_DONE: Final = b"data: [DONE]\n\n"


class Completion:
    """The frame of one answer: what every object of it carries."""

    def __init__(self, request_id: str, model: str, created_s: int) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._model = model
        self._created_s = created_s

    def whole(self, text: str, ending: Ending) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": None,
            "finish_reason": finish_reason(ending),
        }
        return self._frame("chat.completion", [choice]) | {"usage": usage(ending.usage)}

    def first_chunk(self) -> dict[str, Any]:
        """Tells the role before any text."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def text_chunk(self, text: str) -> dict[str, Any]:
        """New text."""
        return self._chunk({"content": text}, None)

    def last_chunk(self, ending: Ending) -> dict[str, Any]:
        """The finish reason."""
        return self._chunk({}, finish_reason(ending))

    def usage_chunk(self, ending: Ending) -> dict[str, Any]:
        """For stream_options.include_usage: no choices, only the counts."""
        return self._frame("chat.completion.chunk", []) | {"usage": usage(ending.usage)}

    def _chunk(self, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._frame("chat.completion.chunk", [choice])

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created_s,
            "model": self._model,
            "choices": choices,
        }


def finish_reason(ending: Ending) -> str:
    """OpenAI knows no abort; to its clients the text just stopped."""
    return "length" if ending.reason is FinishReason.LENGTH else "stop"


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_prompt_tokens},
    }


def models(model: str, context_tokens_max: int, created_s: int) -> dict[str, Any]:
    """The answer of GET /v1/models."""
    entry = {
        "id": model,
        "object": "model",
        "created": created_s,
        "owned_by": "crossdock",
        "max_model_len": context_tokens_max,
    }
    return {"object": "list", "data": [entry]}


def error_status(error: CrossdockError) -> int:
    """Its HTTP status; a body that is too large has its own."""
    if error.code is Code.INVALID_ARGUMENT and error.field == "request":
        return 413
    return error.http_status


def error_body(error: CrossdockError) -> dict[str, Any]:
    """OpenAI's error object."""
    return {
        "error": {
            "message": error.message,
            "type": _ERROR_TYPE.get(error_status(error), "server_error"),
            "param": error.field,
            "code": error.reason,
        }
    }


def sse(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n\n"
