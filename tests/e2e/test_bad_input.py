"""What callers may not ask, over gRPC and HTTP: refused by field and bound, to no other effect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from crossdock.api.v1 import inference_pb2 as pb
from crossdock.cli.fleet import Fleet
from crossdock.cli.fleet_plan import FleetOptions
from crossdock.errors import Code
from tests.conftest import StartFleet
from tests.e2e.bystander import bystander
from tests.e2e.caller import Answer, Caller, router_address, sampling, services, status_of
from tests.e2e.refusals import Refused, mismatches

# The tiny model: 512 ids, a context of 4,096 tokens, 16 KiB a block of 32 tokens. A pool of 64
# blocks is smaller than the context, so that either can be what a prompt exceeds.
SMALL_POOL = "1MiB"
BODY_MAX = 10_000_000
TRIES_MAX = 20
REFUSED_MAX_S = 10.0
NAN, INFINITY = float("nan"), float("inf")


@pytest.fixture(scope="module")
def fleet(tiny_model: Path, fleet_starter: StartFleet) -> Fleet:
    return fleet_starter(FleetOptions(tiny_model, kvstore=False, kv_memory=SMALL_POOL))


def ids(*values: int, **params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=values), sampling=pb.SamplingParams(**params)
    )


def prompts() -> Iterator[tuple[pb.GenerateRequest, str, str]]:
    yield pb.GenerateRequest(), "prompt", "must be text or token_ids"
    yield pb.GenerateRequest(text=""), "text", "at least one character"
    yield ids(), "token_ids.ids", "at least one token"
    yield ids(*[5] * 4096), "token_ids.ids", "4096 tokens; must be at most 4095"
    yield ids(*[5] * 2048), "token_ids.ids", "2048 tokens; must be at most 2047"
    yield pb.GenerateRequest(text="x" * 3_000), "text", "tokens; must be at most 2047"
    yield pb.GenerateRequest(text="x" * 9_000_000), "text", "9000000 bytes; must be at most"
    yield pb.GenerateRequest(text="x" * BODY_MAX), "request", f"at most {BODY_MAX}"
    yield ids(5, -1), "token_ids.ids[1]", "-1; must be in [0, 511]"
    yield ids(512), "token_ids.ids[0]", "512; must be in [0, 511]"
    long_name = "日" * 100_000
    for model in ("another", "../../etc/passwd", long_name):
        yield pb.GenerateRequest(text="a", model=model), "model", "is not served here"
    too_long = "x" * 129
    yield pb.GenerateRequest(text="a", request_id=too_long), "request_id", "at most 128"
    yield pb.GenerateRequest(text="a", request_id="a\nb"), "request_id", "visible ASCII"


def samplings() -> Iterator[tuple[dict[str, Any], str, str]]:
    for temperature in (NAN, INFINITY, -INFINITY, -0.5, 2.5):
        yield {"temperature": temperature}, "temperature", "a number in [0, 2]"
    for top_p in (NAN, 0.0, -0.1, 1.5, INFINITY):
        yield {"top_p": top_p}, "top_p", "a number in (0, 1]"
    for max_tokens in (0, -1, -(2**31)):
        yield {"max_tokens": max_tokens}, "max_tokens", f"{max_tokens}; must be at least 1"
    # Two prompt tokens in a pool of 2,048.
    yield {"max_tokens": 2047}, "max_tokens", "must be at most 2046"
    yield {"max_tokens": 2**31 - 1}, "max_tokens", "must be at most 2046"
    yield {"min_tokens": -1}, "min_tokens", "at least 0"
    yield {"max_tokens": 4, "min_tokens": 5}, "min_tokens", "(4)"
    yield {"stop_token_ids": [1, -1]}, "stop_token_ids[1]", "must be in [0, 511]"
    yield {"stop_token_ids": [512]}, "stop_token_ids[0]", "must be in [0, 511]"
    yield {"stop_token_ids": [5] * 129}, "stop_token_ids", "129 ids; must be at most 128"
    yield {"stop": ["x"] * 17}, "stop", "17 strings; must be at most 16"
    yield {"stop": ["x", ""]}, "stop[1]", "at least one character"
    yield {"stop": ["x" * 1025]}, "stop[0]", "1025 bytes; must be at most 1024"
    for name in ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p"):
        for value in (0.5, NAN):
            yield {name: value}, name, "not supported"
    yield {"n": 2}, "n", "not supported"
    yield {"logprobs": 0}, "logprobs", "not supported"
    yield {"json_schema": "{}"}, "json_schema", "not supported"


def chats() -> Iterator[tuple[pb.ChatRequest, str, str]]:
    def chat(*messages: tuple[str, str]) -> pb.ChatRequest:
        return pb.ChatRequest(messages=[pb.ChatMessage(role=r, content=c) for r, c in messages])

    yield chat(), "messages", "at least one message"
    yield chat(("user", "a"), ("robot", "b")), "messages[1].role", "must be one of system, user"
    yield chat(*[("user", "")] * 4097), "messages", "4097 messages; must be at most 4096"
    yield chat(("user", "x" * 3_000)), "messages", "tokens; must be at most 2047"


def unparsable() -> Iterator[Refused]:
    mark, bad = "MARK", b"\xff\xfe\xc0\x80"
    params = pb.SamplingParams(stop=["a", mark])
    message = pb.ChatMessage(role="user", content=mark)
    requests = {
        "request_id": pb.GenerateRequest(request_id=mark),
        "model": pb.GenerateRequest(model=mark),
        "text": pb.GenerateRequest(text=mark),
        "sampling.stop[1]": pb.GenerateRequest(sampling=params),
        "messages[0].content": pb.ChatRequest(messages=[message]),
    }
    for name, request in requests.items():
        method = "Chat" if isinstance(request, pb.ChatRequest) else "Generate"
        raw = request.SerializeToString().replace(mark.encode(), bad)
        yield Refused(f"Inference/{method}", raw, name, "not valid UTF-8")
    for raw in (b"\xff" * 12, b"\x0a\x7fshort"):
        for method in ("Generate", "Chat", "Tokenize", "Abort"):
            yield Refused(f"Inference/{method}", raw, "request", "not a valid")


def other_calls() -> Iterator[Refused]:
    detokenize = "Inference/Detokenize"
    yield Refused(detokenize, pb.DetokenizeRequest(token_ids=[512]), "token_ids[0]", "[0, 511]")
    yield Refused(detokenize, pb.DetokenizeRequest(token_ids=[-1]), "token_ids[0]", "[0, 511]")
    yield Refused("Inference/Tokenize", pb.TokenizeRequest(text="a", model="x"), "model", "served")
    long_text = pb.TokenizeRequest(text="a" * 1_000_001)
    yield Refused("Inference/Tokenize", long_text, "text", "at most 1000000")
    yield Refused("Inference/Abort", pb.AbortRequest(request_id="x" * 129), "request_id", "128")
    none = pb.AbortRequest(request_id="nobody")
    yield Refused("Inference/Abort", none, None, "no live request", Code.NOT_FOUND)
    # Beyond 16 MiB gRPC itself refuses, before the service sees anything of it.
    huge = pb.GenerateRequest(text="x" * (17 << 20))
    yield Refused("Inference/Generate", huge, None, "16777216", Code.RESOURCE_EXHAUSTED)


def grpc_cases() -> Iterator[Refused]:
    for request, name, words in prompts():
        yield Refused("Inference/Generate", request, name, words)
    for params, name, words in samplings():
        yield Refused("Inference/Generate", ids(5, 6, **params), f"sampling.{name}", words)
    for chat, name, words in chats():
        yield Refused("Inference/Chat", chat, name, words)
    yield from unparsable()
    yield from other_calls()


def test_grpc_refuses_by_field_and_bound(fleet: Fleet) -> None:
    async def run() -> list[str]:
        async with bystander(fleet):
            return await mismatches(router_address(fleet), list(grpc_cases()))

    found = asyncio.run(run())
    assert not found, "\n".join(found)


@dataclass(frozen=True)
class Post:
    """A body for /v1/chat/completions, and what its refusal must say."""

    body: Mapping[str, Any] | bytes
    param: str
    words: str
    status: int = 400
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def raw(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        whole = {"messages": [{"role": "user", "content": "hello"}], **self.body}
        return json.dumps(whole).encode()


def wrong_types() -> Iterator[Post]:
    kinds: dict[str, list[Any]] = {
        "a string": [1, True, [], {}],
        "a number": ["1", True, [0], {}],
        "an integer": ["1", True, 1.5, [1], NAN],
        "true or false": [1, "true", [], {}],
        "a list of integers": [1, "1", {}],
        "a string or a list of strings": [1, {}, True],
    }
    fields = {
        "model": "a string",
        "user": "a string",
        "temperature": "a number",
        "top_p": "a number",
        "top_k": "an integer",
        "seed": "an integer",
        "max_tokens": "an integer",
        "max_completion_tokens": "an integer",
        "min_tokens": "an integer",
        "stream": "true or false",
        "ignore_eos": "true or false",
        "stop_token_ids": "a list of integers",
        "stop": "a string or a list of strings",
    }
    for name, kind in fields.items():
        for value in kinds[kind]:
            yield Post({name: value}, name, f"must be {kind}")
    yield Post({"stop": ["a", 1]}, "stop[1]", "must be a string")
    yield Post({"stop_token_ids": [1, None]}, "stop_token_ids[1]", "must be an integer")
    yield Post({"messages": "hello"}, "messages", "must be a list")
    yield Post({"messages": ["hello"]}, "messages[0]", "must be an object")
    parts = [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]
    yield Post({"messages": parts}, "messages[0].content[0].type", "must be 'text'")
    yield Post({"stream": True, "stream_options": 1}, "stream_options", "must be an object")


def not_built() -> Iterator[Post]:
    asked: dict[str, Any] = {
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"5": 1},
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.1,
        "min_p": 0.1,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
        "functions": [{"name": "f"}],
        "response_format": {"type": "json_object"},
        "guided_json": {},
        "audio": {},
        "best_of": 2,
        "store": True,
    }
    for name, value in asked.items():
        yield Post({name: value}, name, "not supported")
    for name in ("temprature", "prompt", "日" * 100_000, "\ud800"):
        yield Post({name: 1}, name[:64].replace("\ud800", "?"), "not a field")
    image = {"role": "user", "content": "a", "tool_calls": [{}]}
    yield Post({"messages": [image]}, "messages[0].tool_calls", "not supported")


def bodies() -> Iterator[Post]:
    yield Post(b"", "body", "not valid JSON")
    yield Post(b"{", "body", "not valid JSON")
    yield Post(b"[]", "body", "must be a JSON object")
    yield Post(b'{"model": "\xff\xfe"}', "body", "not valid UTF-8 at byte 11")
    yield Post(b"[" * 100_000, "body", "nested too deep")
    yield Post(b'{"seed": ' + b"1" * 10_000 + b"}", "body", "too many digits")
    huge = {"messages": [{"role": "user", "content": "x" * BODY_MAX}]}
    yield Post(huge, "request", f"must be at most {BODY_MAX}", status=413)
    surrogate = {"messages": [{"role": "user", "content": "\ud800"}]}
    yield Post(surrogate, "messages[0].content", "lone surrogate")
    yield Post({"stop": "\udfff"}, "stop[0]", "lone surrogate")
    yield Post({"model": "\ud800"}, "model", "is not served here")
    yield Post({"messages": []}, "messages", "at least one message")
    yield Post({"seed": -1}, "seed", "in [0, 18446744073709551615]")
    yield Post({"top_k": 2**32}, "top_k", "in [0, 4294967295]")
    long_id = {"x-request-id": "x" * 129}
    yield Post({}, "x-request-id", "at most 128", headers=long_id)


def http_cases() -> Iterator[Post]:
    for params, name, words in samplings():
        if name.partition("[")[0] not in ("json_schema", "logprobs") and "2046" not in words:
            yield Post(params, name, words)
    yield from wrong_types()
    yield from not_built()
    yield from bodies()


async def http_mismatch(client: httpx.AsyncClient, post: Post) -> str | None:
    reply = await client.post("/v1/chat/completions", content=post.raw, headers=post.headers)
    try:
        error = reply.json()["error"]
        param, message = error["param"], error["message"]
    except (ValueError, KeyError):
        return f"{post.raw[:200]!r}: {reply.status_code} {reply.text[:200]!r}"
    named = (reply.status_code, str(param).removesuffix("...")) == (post.status, post.param)
    if named and post.words in message and len(reply.content) < 10_000:
        return None
    return (
        f"{post.raw[:200]!r}: {reply.status_code} on {param!r:.100} {message!r:.200} "
        f"({len(reply.content)} bytes), expected {post.status} on {post.param}: {post.words}"
    )


def test_http_refuses_by_field_and_bound(fleet: Fleet) -> None:
    async def run() -> list[str]:
        base = f"http://{services(fleet, 'router')[0].http_address}"
        async with bystander(fleet), httpx.AsyncClient(base_url=base, timeout=60) as client:
            found = [await http_mismatch(client, post) for post in http_cases()]
            for method, path, status in (
                ("GET", "/v1/chat/completions", 405),
                ("POST", "/v1/completions", 404),
                ("POST", "/v1/models", 405),
            ):
                reply = await client.request(method, path)
                assert reply.status_code == status
                assert path in reply.json()["error"]["message"]
        return [mismatch for mismatch in found if mismatch is not None]

    found = asyncio.run(run())
    assert not found, "\n".join(found)


def test_a_live_request_id_is_refused_and_its_owner_goes_on(fleet: Fleet) -> None:
    name = "the-one"
    prompt, params = [9, 8, 7], sampling(1_500)
    engine_pid = status_of(services(fleet, "decode")[0]).engine_pid
    base = f"http://{services(fleet, 'router')[0].http_address}"
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}

    async def begin(caller: Caller) -> asyncio.Task[Answer]:
        begun = asyncio.Event()
        task = asyncio.create_task(
            caller.generate(prompt, params, request_id=name, on_message=lambda _: begun.set())
        )
        await asyncio.wait_for(begun.wait(), 60)
        return task

    async def run() -> None:
        async with (
            Caller(router_address(fleet)) as caller,
            httpx.AsyncClient(base_url=base, timeout=REFUSED_MAX_S) as web,
        ):
            alone = await caller.generate(prompt, params)
            for _ in range(TRIES_MAX):
                first = await begin(caller)
                reply = None
                # While its engine stands still it does not end, unless its last token is made.
                os.kill(engine_pid, signal.SIGSTOP)
                try:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await caller.generate(
                            prompt, sampling(1), request_id=name, timeout_s=REFUSED_MAX_S
                        )
                    with contextlib.suppress(httpx.TimeoutException):
                        headers = {"x-request-id": name}
                        reply = await web.post("/v1/chat/completions", json=body, headers=headers)
                    was_live = not first.done()
                finally:
                    os.kill(engine_pid, signal.SIGCONT)
                assert (await first).same == alone.same
                if was_live:
                    break
            assert was_live, "the first one always ended too early to show anything"
            assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
            assert name in (caught.value.details() or "")
            assert reply is not None
            assert reply.status_code == 409
            assert name in reply.json()["error"]["message"]
            # Its id is free once it ended.
            assert (await caller.generate(prompt, params, request_id=name)).same == alone.same

    asyncio.run(run())
