"""The gRPC API in the good case, and its answers to bad input."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc

from crossdock.api.v1 import inference_pb2
from crossdock.rpc.status import DETAILS_KEY, from_rpc_error
from crossdock.tokenization import Tokenizer
from tests.integration.router.conftest import World, until
from tests.integration.router.fakes import CONTEXT_TOKENS_MAX, EOS, VOCAB_SIZE, DecodeScript
from tests.integration.router.fakes import text_token as letter

Params = inference_pb2.SamplingParams


async def test_tokens_text_usage_and_timings(world: World, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("hello")
    responses = await world.generate(
        request_id="r1", text="hello", sampling=Params(max_tokens=9, seed=5)
    )
    token_ids = [token for response in responses for token in response.token_ids]
    assert token_ids == [letter(len(prompt) + index, 5) for index in range(9)]
    assert "".join(response.text for response in responses) == tokenizer.decode(token_ids)
    assert [response.HasField("finish") for response in responses[:-1]] == [False] * (
        len(responses) - 1
    )
    finish = responses[-1].finish
    assert finish.reason == inference_pb2.FINISH_REASON_LENGTH
    assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (len(prompt), 9)
    assert finish.usage.cached_prompt_tokens == 1
    timings = finish.timings
    assert (timings.queue_ms, timings.prefill_ms, timings.handoff_ms) == (1.5, 2.5, 0.5)
    assert (timings.handoff_bytes, timings.handoff_transfers) == (4096, 3)
    assert (timings.transport, timings.attempts) == ("shm", 1)
    assert timings.ttft_ms > 0
    assert (timings.prefill_instance, timings.decode_instance) == ("prefill-0", "decode-0")
    await world.assert_drained()


async def test_both_instances_are_told_the_same(world: World) -> None:
    await world.generate(token_ids=inference_pb2.TokenIds(ids=[5, 6, 7]))
    [prefill] = world.prefill[0].instance.requests
    [decode] = world.decode[0].instance.requests
    assert len(prefill.handoff_id) == 16
    assert prefill.handoff_id == decode.handoff_id
    assert list(prefill.token_ids) == list(decode.token_ids) == [5, 6, 7]
    assert prefill.sampling == decode.sampling
    assert (decode.source_instance_id, decode.source_epoch) == ("prefill-0", 11)
    assert decode.source_address == world.prefill[0].instance.address
    assert (prefill.target_instance_id, prefill.target_epoch) == ("decode-0", 11)


async def test_missing_seed_is_drawn_anew_for_each_request(world: World) -> None:
    for _ in range(2):
        await world.generate(text="x", sampling=Params(max_tokens=1))
    first, second = (request.sampling.seed for request in world.decode[0].instance.requests)
    assert first != second


async def test_absent_max_tokens_is_cut_to_the_context(world: World) -> None:
    prompt = [5] * (CONTEXT_TOKENS_MAX - 3)
    responses = await world.generate(token_ids=inference_pb2.TokenIds(ids=prompt))
    assert responses[-1].finish.usage.completion_tokens == 3


async def test_logit_digests_come_with_every_token(world: World) -> None:
    responses = await world.generate(
        token_ids=inference_pb2.TokenIds(ids=[5]),
        sampling=Params(max_tokens=4),
        return_logit_digests=True,
    )
    digests = [digest for response in responses for digest in response.logit_digests]
    assert digests == [position.to_bytes(16, "little") for position in range(1, 5)]


async def test_end_of_sequence_id_is_a_token_but_no_text(
    world: World, tokenizer: Tokenizer
) -> None:
    ids = [*tokenizer.encode("ab"), EOS]
    world.decode[0].scripts.append(DecodeScript(tokens=ids))
    world.prefill[0].first_tokens.append(ids[0])
    responses = await world.generate(text="x", sampling=Params(max_tokens=10))
    assert [token for response in responses for token in response.token_ids] == ids
    assert "".join(response.text for response in responses) == "ab"
    assert responses[-1].finish.reason == inference_pb2.FINISH_REASON_STOP


async def test_stop_string_across_messages_ends_the_request_and_the_lease(
    world: World, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("one two END three")
    world.decode[0].scripts.append(DecodeScript(tokens=ids + [5] * 900, hold_after=len(ids)))
    world.prefill[0].first_tokens.append(ids[0])
    responses = await world.generate(text="x", sampling=Params(max_tokens=900, stop=[" END", "zz"]))
    assert "".join(response.text for response in responses) == "one two"
    finish = responses[-1].finish
    assert (finish.reason, finish.matched_stop) == (inference_pb2.FINISH_REASON_STOP, " END")
    assert finish.usage.completion_tokens == len(tokenizer.encode("one two END"))
    await world.assert_drained()


async def test_stop_string_in_the_first_token_of_the_prefill_reply(
    world: World, tokenizer: Tokenizer
) -> None:
    [first] = tokenizer.encode("q")
    world.decode[0].scripts.append(DecodeScript(hold_after=0))
    world.prefill[0].first_tokens.append(first)
    responses = await world.generate(text="x", sampling=Params(stop=["q"]))
    assert responses[-1].finish.matched_stop == "q"
    assert responses[-1].finish.timings.transport == "shm"
    await world.assert_drained()


async def test_text_held_for_a_stop_string_comes_out_at_the_end(
    world: World, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode("abEN")
    world.decode[0].scripts.append(DecodeScript(tokens=ids))
    world.prefill[0].first_tokens.append(ids[0])
    responses = await world.generate(
        text="x",
        sampling=Params(max_tokens=len(ids), stop=["END"], include_stop_str_in_output=True),
    )
    assert "".join(response.text for response in responses) == "abEN"


async def test_slow_reader_gets_fewer_messages_and_every_token(world: World) -> None:
    call = aiter(
        world.stub.Generate(
            inference_pb2.GenerateRequest(text="x", sampling=Params(max_tokens=800, seed=1))
        )
    )
    first = await anext(call)
    # The decode call is over: everything waits at the router, as text and ids of few messages.
    await until(lambda: world.decode[0].instance.num_live == 0)
    rest = [response async for response in call]
    total = len(first.token_ids) + sum(len(response.token_ids) for response in rest)
    assert total == 800
    assert rest[-1].HasField("finish")
    await world.assert_drained()


async def test_chat_renders_the_template(world: World, tokenizer: Tokenizer) -> None:
    request = inference_pb2.ChatRequest(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")],
        sampling=Params(max_tokens=2),
    )
    responses = [response async for response in world.stub.Chat(request)]
    assert responses[-1].HasField("finish")
    [sent] = world.decode[0].instance.requests
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert list(sent.token_ids) == tokenizer.encode(text, add_special_tokens=False)


async def test_tokenize_and_detokenize(world: World, tokenizer: Tokenizer) -> None:
    text = "hej, värld 🦆" * 1000
    tokens = await world.stub.Tokenize(inference_pb2.TokenizeRequest(text=text))
    assert list(tokens.token_ids) == tokenizer.encode(text, add_special_tokens=False)
    back = await world.stub.Detokenize(inference_pb2.DetokenizeRequest(token_ids=tokens.token_ids))
    assert back.text == text


async def test_list_models_and_health(world: World) -> None:
    models = await world.stub.ListModels(inference_pb2.ListModelsRequest())
    [model] = models.models
    assert (model.id, model.context_tokens_max) == ("tiny", CONTEXT_TOKENS_MAX)
    assert model.vocab_size == VOCAB_SIZE
    health = health_pb2_grpc.HealthStub(world.channel)
    for service in ("", "crossdock.api.v1.Inference"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_without_prefill_instances_decode_does_both(make_world: Any) -> None:
    world = await make_world(num_prefill=0)
    responses = await world.generate(text="x", sampling=Params(max_tokens=3))
    assert responses[-1].finish.timings.transport == "local"
    [request] = world.decode[0].instance.requests
    assert request.handoff_id == b""
    await world.assert_drained()


NAN = float("nan")
BAD_INPUT: list[tuple[dict[str, Any], str, str]] = [
    ({"text": ""}, "text", "at least one character"),
    ({"token_ids": inference_pb2.TokenIds()}, "token_ids.ids", "at least one token"),
    ({}, "prompt", "text or token_ids"),
    ({"text": "x", "model": "other"}, "model", "tiny"),
    ({"text": "x" * 2000}, "text", str(CONTEXT_TOKENS_MAX)),
    (
        {"token_ids": inference_pb2.TokenIds(ids=[1, VOCAB_SIZE])},
        "token_ids.ids[1]",
        str(VOCAB_SIZE - 1),
    ),
    ({"token_ids": inference_pb2.TokenIds(ids=[-1])}, "token_ids.ids[0]", "vocabulary"),
    ({"text": "x", "request_id": "r" * 129}, "request_id", "128"),
    ({"text": "x", "request_id": "grüße"}, "request_id", "visible ASCII"),
    ({"text": "x", "sampling": Params(max_tokens=0)}, "sampling.max_tokens", "at least 1"),
    ({"text": "x", "sampling": Params(max_tokens=-4)}, "sampling.max_tokens", "at least 1"),
    ({"text": "x", "sampling": Params(max_tokens=4000)}, "sampling.max_tokens", "1023"),
    ({"text": "x", "sampling": Params(min_tokens=-1)}, "sampling.min_tokens", "at least 0"),
    (
        {"text": "x", "sampling": Params(min_tokens=9, max_tokens=8)},
        "sampling.min_tokens",
        "max_tokens (8)",
    ),
    ({"text": "x", "sampling": Params(temperature=NAN)}, "sampling.temperature", "[0, 2]"),
    ({"text": "x", "sampling": Params(temperature=-0.5)}, "sampling.temperature", "[0, 2]"),
    ({"text": "x", "sampling": Params(temperature=2.5)}, "sampling.temperature", "[0, 2]"),
    ({"text": "x", "sampling": Params(top_p=0.0)}, "sampling.top_p", "(0, 1]"),
    ({"text": "x", "sampling": Params(top_p=NAN)}, "sampling.top_p", "(0, 1]"),
    ({"text": "x", "sampling": Params(stop=[""])}, "sampling.stop[0]", "at least one"),
    ({"text": "x", "sampling": Params(stop=["s"] * 17)}, "sampling.stop", "16"),
    (
        {"text": "x", "sampling": Params(stop_token_ids=[VOCAB_SIZE])},
        "sampling.stop_token_ids[0]",
        "511",
    ),
    ({"text": "x", "sampling": Params(n=2)}, "sampling.n", "not supported"),
    ({"text": "x", "sampling": Params(frequency_penalty=0.5)}, "sampling.frequency_penalty", "not"),
    ({"text": "x", "sampling": Params(presence_penalty=NAN)}, "sampling.presence_penalty", "not"),
    ({"text": "x", "sampling": Params(repetition_penalty=2)}, "sampling.repetition_penalty", "not"),
    ({"text": "x", "sampling": Params(logprobs=0)}, "sampling.logprobs", "not supported"),
    ({"text": "x", "sampling": Params(json_schema="{}")}, "sampling.json_schema", "not supported"),
    ({"text": "x", "sampling": Params(min_p=0.1)}, "sampling.min_p", "not supported"),
    ({"text": "x" * 9_000_000}, "text", "9000000 bytes; must be at most"),
    ({"text": "x" * 10_000_001}, "request", "10000000"),
]


async def test_bad_input_names_the_field_and_the_bound(world: World) -> None:
    for fields, field, bound in BAD_INPUT:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.generate(**fields)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, fields
        error = from_rpc_error(caught.value)
        assert error.field == field
        assert bound in error.message
    assert not world.decode[0].instance.requests
    await world.assert_drained()


async def test_prompt_longer_than_every_pool(make_world: Any) -> None:
    world = await make_world()
    world.decode[0].instance.num_blocks = 4
    await until(lambda: world.router.fleet.limits().decode_pool_tokens == 128)
    with pytest.raises(grpc.aio.AioRpcError, match="127"):
        await world.generate(token_ids=inference_pb2.TokenIds(ids=[5] * 128))
    responses = await world.generate(token_ids=inference_pb2.TokenIds(ids=[5] * 120))
    assert responses[-1].finish.usage.completion_tokens == 8


async def test_invalid_utf8_names_the_field(world: World) -> None:
    good = inference_pb2.ChatRequest(
        messages=[
            inference_pb2.ChatMessage(role="user", content="fine"),
            inference_pb2.ChatMessage(role="user", content="MARK"),
        ]
    )
    raw = good.SerializeToString().replace(b"MARK", b"\xff\xfe\xfd\xfc")
    call = world.channel.unary_stream("/crossdock.api.v1.Inference/Chat", bytes, bytes)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call(raw):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(caught.value).field == "messages[1].content"


async def test_duplicate_live_id_is_refused_and_the_first_goes_on(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(hold_after=2))
    call = aiter(
        world.stub.Generate(
            inference_pb2.GenerateRequest(
                request_id="twin", text="x", sampling=Params(max_tokens=4)
            )
        )
    )
    await anext(call)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.generate(request_id="twin", text="y")
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    world.fabric.release.set()
    rest = [response async for response in call]
    assert rest[-1].finish.usage.completion_tokens == 4
    again = await world.generate(request_id="twin", text="x", sampling=Params(max_tokens=1))
    assert again[-1].HasField("finish")
    await world.assert_drained()


async def test_too_many_live_requests_are_refused_with_retry_info(make_world: Any) -> None:
    world = await make_world(max_requests=1)
    world.decode[0].scripts.append(DecodeScript(hold_after=1))
    call = aiter(
        world.stub.Generate(inference_pb2.GenerateRequest(text="x", sampling=Params(max_tokens=2)))
    )
    await anext(call)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.generate(text="y")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = _details(caught.value)
    assert details["RetryInfo"].retry_delay.seconds >= 1
    assert details["ErrorInfo"].reason == "OVERLOADED"
    world.fabric.release.set()
    async for _ in call:
        pass
    await world.assert_drained()


async def test_abort_ends_with_the_reason_abort(world: World) -> None:
    world.decode[0].scripts.append(DecodeScript(hold_after=2))
    call = aiter(
        world.stub.Generate(
            inference_pb2.GenerateRequest(request_id="a", text="x", sampling=Params(max_tokens=9))
        )
    )
    await anext(call)
    await world.stub.Abort(inference_pb2.AbortRequest(request_id="a"))
    rest = [response async for response in call]
    assert rest[-1].finish.reason == inference_pb2.FINISH_REASON_ABORT
    await world.assert_drained()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.stub.Abort(inference_pb2.AbortRequest(request_id="a"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_concurrent_requests_each_get_their_own(world: World, tokenizer: Tokenizer) -> None:
    async def one(seed: int) -> bool:
        responses = await world.generate(text="hello", sampling=Params(max_tokens=40, seed=seed))
        ids = [token for response in responses for token in response.token_ids]
        start = len(tokenizer.encode("hello"))
        return ids == [letter(start + index, seed) for index in range(40)]

    assert all(await asyncio.gather(*(one(seed) for seed in range(64))))
    await world.assert_drained()


def _details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    metadata: Any = error.trailing_metadata()
    raw = next(value for key, value in metadata if key == DETAILS_KEY)
    found: dict[str, Any] = {}
    for packed in status_pb2.Status.FromString(raw).details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo):
            message = kind()
            if packed.Unpack(message):
                found[kind.__name__] = message
    return found
