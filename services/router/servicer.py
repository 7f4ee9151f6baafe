"""The gRPC surface. Translation only: proto to domain call, domain event to proto."""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the service.

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from crossdock.api.v1 import inference_pb2, inference_pb2_grpc
from services.router import translation, validation
from services.router.generation import Inference, InferenceCall

NAME: Final = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

# A drain neither refuses these nor waits for them: whoever waits for a stream may still abort it.
UNGATED: Final = (f"/{NAME}/Abort", f"/{NAME}/ListModels")


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """crossdock.api.v1.Inference. Errors are raised; the server's interceptor makes statuses."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        _check(request)
        return self._stream(translation.to_generate_call(request, context.time_remaining()))

    def Chat(
        self, request: inference_pb2.ChatRequest, context: Any
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        _check(request)
        return self._stream(translation.to_chat_call(request, context.time_remaining()))

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Any
    ) -> inference_pb2.TokenizeResponse:
        _check(request)
        validation.check_model(request.model, self._inference.model)
        validation.check_text_bytes(request.text, validation.TOKENIZE_BYTES_MAX, "text")
        token_ids = await self._inference.prompter.encode_text(
            request.text, add_special_tokens=request.add_special_tokens
        )
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeRequest, context: Any
    ) -> inference_pb2.DetokenizeResponse:
        _check(request)
        validation.check_model(request.model, self._inference.model)
        token_ids = tuple(request.token_ids)
        validation.check_token_ids(token_ids, self._inference.limits().vocab_size, "token_ids")
        return inference_pb2.DetokenizeResponse(
            text=await self._inference.prompter.decode(token_ids)
        )

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Any
    ) -> inference_pb2.ListModelsResponse:
        _check(request)
        limits = self._inference.limits()
        model = inference_pb2.Model(
            id=self._inference.model,
            context_tokens_max=limits.context_tokens_max,
            vocab_size=limits.vocab_size,
        )
        return inference_pb2.ListModelsResponse(models=[model])

    async def Abort(
        self, request: inference_pb2.AbortRequest, context: Any
    ) -> inference_pb2.AbortResponse:
        _check(request)
        validation.check_request_id(request.request_id)
        self._inference.live.abort(request.request_id)
        return inference_pb2.AbortResponse()

    async def _stream(
        self, call: InferenceCall
    ) -> AsyncGenerator[inference_pb2.GenerateResponse, None]:
        async with self._inference.open(call) as generation:
            ended = False
            while not ended:
                delta = await generation.take()
                ended = delta.ending is not None
                yield translation.from_delta(generation.request_id, delta)


def register(servicer: InferenceServicer) -> Callable[[grpc.aio.Server], None]:
    """Adds the servicer to a server."""
    return lambda server: inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)


def _check(request: Message) -> None:
    validation.check_body_size(request.ByteSize())
