"""OpenAI's API over HTTP: answers, streams, errors, disconnects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from crossdock.errors import engine_restarted, handoff_refused, internal
from crossdock.tokenization import Tokenizer
from services.router import openai_http
from tests.integration.router.conftest import World, until
from tests.integration.router.fakes import LETTERS, WAIT_S, DecodeScript, PrefillScript

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "seed": 1} | fields


def script_text(world: World, tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    world.decode[0].scripts.append(DecodeScript(tokens=ids + [LETTERS[0]] * 50, per_message=2))
    world.prefill[0].first_tokens.append(ids[0])


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


async def test_completion(world: World, tokenizer: Tokenizer) -> None:
    script_text(world, tokenizer, "hej då")
    count = len(tokenizer.encode("hej då"))
    response = await world.http.post(CHAT, json=body(max_tokens=count))
    assert response.status_code == 200
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "tiny"
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "hej då"
    assert choice["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == count
    assert usage["total_tokens"] == usage["prompt_tokens"] + count
    await world.assert_drained()


async def test_stream(world: World, tokenizer: Tokenizer) -> None:
    script_text(world, tokenizer, "one two stop three")
    response = await world.http.post(
        CHAT,
        json=body(
            max_completion_tokens=30,
            max_tokens=None,
            stream=True,
            stop=" stop",
            stream_options={"include_usage": True},
        ),
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, usage, done = events_of(response.text)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(tokenizer.encode("one two stop"))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == "one two"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    await world.assert_drained()


async def test_content_may_be_parts(world: World) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    await world.http.post(CHAT, json=body(messages=[{"role": "user", "content": parts}]))
    await world.http.post(CHAT, json=body())
    first, second = world.decode[0].instance.requests
    assert first.token_ids == second.token_ids


async def test_models_and_health(world: World) -> None:
    answer = (await world.http.get("/v1/models")).json()
    assert [model["id"] for model in answer["data"]] == ["tiny"]
    assert (await world.http.get("/health")).status_code == 200


async def test_unknown_path_and_method(world: World) -> None:
    missing = await world.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    assert (await world.http.get(CHAT)).status_code == 405


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"model": "gpt-4"}, "model"),
    ({"model": 3}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
    ({"messages": [*MESSAGES, {"role": "user", "content": "x", "name": "n"}]}, "messages[1].name"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
    ),
    ({"max_tokens": "6"}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 6.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": -1, "max_tokens": None}, "max_completion_tokens"),
    ({"max_completion_tokens": 7}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"seed": -1}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ["ok", 5]}, "stop[1]"),
    ({"stop": ""}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [512]}, "stop_token_ids[0]"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"frequency_penalty": 0.1}, "frequency_penalty"),
    ({"no_such_field": 1}, "no_such_field"),
]


async def test_bad_fields_are_named(world: World) -> None:
    for fields, param in BAD_FIELDS:
        response = await world.http.post(CHAT, content=json.dumps(body(**fields)))
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), fields
        assert error["message"].startswith(param), fields
    assert not world.decode[0].instance.requests
    await world.assert_drained()


async def test_fields_that_ask_for_nothing_are_taken(world: World) -> None:
    neutral = {
        "n": 1,
        "logprobs": False,
        "tools": [],
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "user": "someone",
        "stop": None,
    }
    response = await world.http.post(CHAT, json=body(**neutral))
    assert response.status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": "\xff"}',
        b"{",
        b"[]",
        b"",
        b"[" * 100_000,
        b'{"max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
async def test_body_that_is_no_json_object(world: World, raw: bytes) -> None:
    response = await world.http.post(CHAT, content=raw)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "body")


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_over_the_bound(world: World, chunked: bool) -> None:
    async def stream() -> Any:
        for _ in range(11):
            yield b" " * 1_000_000

    content = stream() if chunked else b" " * 11_000_000
    response = await world.http.post(CHAT, content=content)
    assert response.status_code == 413
    assert "10000000" in response.json()["error"]["message"]


async def test_nan_is_refused_by_name(world: World) -> None:
    raw = json.dumps(body(temperature=float("nan")))
    response = await world.http.post(CHAT, content=raw)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")


async def test_duplicate_live_id(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(hold_after=1))
    headers = {"x-request-id": "twin"}
    first = asyncio.create_task(world.http.post(CHAT, json=body(), headers=headers))
    await until(lambda: bool(world.decode[0].instance.requests))
    second = await world.http.post(CHAT, json=body(), headers=headers)
    assert second.status_code == 409
    world.fabric.release.set()
    response = await first
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "twin"
    await world.assert_drained()


async def test_an_id_that_no_header_carries_is_refused(world: World) -> None:
    headers = {b"x-request-id": "grüße".encode()}
    response = await world.http.post(CHAT, json=body(), headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-request-id")


async def test_overload_is_429_with_retry_after(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(error=handoff_refused("full")))
    response = await world.http.post(CHAT, json=body(stream=True))
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "OVERLOADED"


async def test_no_instance_is_503(world: World) -> None:
    world.decode[0].instance.ready = False
    await until(lambda: world.router.fleet.limits() is None)
    assert (await world.http.post(CHAT, json=body())).status_code == 503
    assert (await world.http.get("/v1/models")).status_code == 503


async def test_error_after_the_first_token_is_an_event_and_no_done(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(fail_after=3, error=internal("broken")))
    response = await world.http.post(CHAT, json=body(stream=True))
    *_, last = events_of(response.text)
    assert last["error"]["type"] == "server_error"
    await world.assert_drained()


async def test_decode_dies_and_the_stream_goes_on(world: World, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("abcdef")
    world.prefill[0].first_tokens.extend([ids[0], ids[3]])
    world.decode[0].scripts += [
        DecodeScript(tokens=ids, fail_after=3, error=engine_restarted("ended")),
        DecodeScript(tokens=ids[3:]),
    ]
    response = await world.http.post(CHAT, json=body(max_tokens=len(ids)))
    assert response.json()["choices"][0]["message"]["content"] == "abcdef"
    await world.assert_drained()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stage", ["prefill", "decode"])
async def test_client_goes_away(world: World, stream: bool, stage: str) -> None:
    if stage == "prefill":
        world.prefill[0].scripts.append(PrefillScript(hang=True))
    else:
        world.decode[0].scripts.append(DecodeScript(hold_after=2))
    base = f"http://{world.http_address}"
    async with httpx.AsyncClient(base_url=base, timeout=WAIT_S) as client:
        call = asyncio.create_task(client.post(CHAT, json=body(stream=stream)))
        await until(lambda: world.decode[0].instance.num_live == 1)
        if stage == "decode":
            await until(lambda: world.prefill[0].instance.num_live == 0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await world.assert_drained()


async def test_a_body_that_does_not_end_is_408(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_http, "CLIENT_PATIENCE_S", 0.2)
    host, _, port = world.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\n"
    writer.write(head.encode() + b"{")
    async with asyncio.timeout(WAIT_S):
        answer = await reader.read()  # to the end: the connection is closed
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.2 s" in answer
    await world.assert_drained()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_takes_nothing_ends_its_request(
    world: World, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    """As uvicorn has it once a connection's buffers are full."""
    monkeypatch.setattr(openai_http, "CLIENT_PATIENCE_S", 0.2)
    raw = json.dumps(body(stream=stream, max_tokens=50)).encode()
    received = iter([{"type": "http.request", "body": raw, "more_body": False}])

    async def receive() -> Any:
        if (message := next(received, None)) is not None:
            return message
        return await asyncio.Future()

    async def send(_message: Any) -> None:
        await asyncio.Future()

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    async with asyncio.timeout(WAIT_S):
        await world.router.http_app(scope, receive, send)
    await world.assert_drained()
