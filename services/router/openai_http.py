"""OpenAI's chat completions and models over HTTP. Translation only.

A client that goes away ends its request, whether it streams or not; so does one whose body is not
over after a minute, and one that takes nothing of its answer for as long. A stream starts with its
first piece, so what fails before it is still an HTTP status; a later failure is an event with an
error object, and then the stream ends without [DONE].
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from crossdock.errors import CrossdockError, internal
from crossdock.rpc.gate import CallGate
from services.router import openai_parse, openai_render, validation
from services.router.generation import Generation, Inference
from services.router.openai_parse import ChatCompletion
from services.router.output import Delta, Ending

# A larger body is parsed on a thread, so that no other stream waits for it.
INLINE_BODY_BYTES_MAX: Final = 65_536
DISCARDED_BYTES_MAX: Final = 64 << 20
# For a whole body to arrive, and for a client to take one piece of an answer.
CLIENT_PATIENCE_S = 60.0

_log = structlog.get_logger("router.http")


def make_app(inference: Inference, gate: CallGate) -> Starlette:
    """The application."""
    created_s = int(time.time())

    async def models(_request: Request) -> Response:
        limits = inference.limits()
        shown = openai_render.models(inference.model, limits.context_tokens_max, created_s)
        return JSONResponse(shown)

    async def health(_request: Request) -> Response:
        serving = not gate.draining
        status = "SERVING" if serving else "NOT_SERVING"
        return JSONResponse({"status": status}, 200 if serving else 503)

    chat = _ChatEndpoint(inference, gate)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers={
            CrossdockError: _on_error,
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )


class _ChatEndpoint:
    """An ASGI application of its own: it watches the connection while it answers."""

    def __init__(self, inference: Inference, gate: CallGate) -> None:
        self._inference = inference
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        send = _bounded(send)
        with self._gate.admit(), contextlib.suppress(ClientDisconnect):
            body = await _read_body_in_time(request)
            completion = await _parse(body, request.headers.get("x-request-id", ""))
            answer = asyncio.create_task(self._answer(completion, scope, receive, send))
            gone = asyncio.create_task(_wait_disconnect(receive))
            try:
                await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # The answer's own finally blocks end the request at both workers.
                gone.cancel()
                if not answer.done():
                    answer.cancel()
                await asyncio.wait({answer, gone})
            if not answer.cancelled():
                answer.result()

    async def _answer(
        self, completion: ChatCompletion, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async with self._inference.open(completion.call) as generation:
            frame = openai_render.Completion(
                generation.request_id, self._inference.model, int(time.time())
            )
            if not completion.stream:
                text, ending = await _collect(generation)
                response = JSONResponse(
                    frame.whole(text, ending),
                    headers={"x-request-id": generation.request_id},
                )
                await response(scope, receive, send)
                return
            first = await generation.take()
            async with aclosing(
                _events(generation, first, frame, completion.include_usage)
            ) as events:
                await _send_events(generation.request_id, events, send)


async def _collect(generation: Generation) -> tuple[str, Ending]:
    pieces: list[str] = []
    while True:
        delta = await generation.take()
        pieces.append(delta.text)
        if delta.ending is not None:
            return "".join(pieces), delta.ending


async def _events(
    generation: Generation, first: Delta, frame: openai_render.Completion, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    yield openai_render.sse(frame.first_chunk())
    delta = first
    try:
        while True:
            if delta.text:
                yield openai_render.sse(frame.text_chunk(delta.text))
            if delta.ending is not None:
                break
            delta = await generation.take()
    except CrossdockError as error:
        yield openai_render.sse(openai_render.error_body(error))
        return
    yield openai_render.sse(frame.last_chunk(delta.ending))
    if include_usage:
        yield openai_render.sse(frame.usage_chunk(delta.ending))
    yield openai_render.SSE_DONE


async def _send_events(request_id: str, events: AsyncGenerator[bytes, None], send: Send) -> None:
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-request-id": request_id,
    }
    encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})
    async for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _bounded(send: Send) -> Send:
    async def bounded(message: Message) -> None:
        try:
            async with asyncio.timeout(CLIENT_PATIENCE_S):
                await send(message)
        except TimeoutError:
            _log.info("client_reads_nothing", seconds=CLIENT_PATIENCE_S)
            raise ClientDisconnect from None

    return bounded


async def _read_body_in_time(request: Request) -> bytes:
    try:
        async with asyncio.timeout(CLIENT_PATIENCE_S):
            return await _read_body(request)
    except TimeoutError:
        detail = f"the body did not arrive within {CLIENT_PATIENCE_S:g} s"
        raise HTTPException(408, detail, {"connection": "close"}) from None


async def _read_body(request: Request) -> bytes:
    """The body, or its refusal. A body that is too large is read on for a bounded while and thrown
    away: most clients look for the answer only once they have sent everything."""
    announced = request.headers.get("content-length", "")
    length = int(announced) if announced.isdecimal() else 0
    waits_for_word = "expect" in request.headers
    if length > DISCARDED_BYTES_MAX or waits_for_word:
        validation.check_body_size(length)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= validation.BODY_BYTES_MAX:
            chunks.append(chunk)
        elif size > DISCARDED_BYTES_MAX:
            break
    validation.check_body_size(size)
    return b"".join(chunks)


async def _parse(body: bytes, request_id: str) -> ChatCompletion:
    if len(body) <= INLINE_BODY_BYTES_MAX:
        return openai_parse.parse_chat(openai_parse.parse_body(body), request_id)
    value = await asyncio.to_thread(openai_parse.parse_body, body)
    return openai_parse.parse_chat(value, request_id)


async def _wait_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CrossdockError)
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return JSONResponse(openai_render.error_body(error), openai_render.error_status(error), headers)


async def _on_bug(_request: Request, error: Exception) -> Response:
    _log.error("request_failed", exc_info=error)
    failure = internal("internal error; see the log of the router")
    return JSONResponse(openai_render.error_body(failure), openai_render.error_status(failure))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = {
        "error": {
            "message": f"{request.method} {request.url.path}: {error.detail}",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }
    return JSONResponse(body, error.status_code, error.headers)
