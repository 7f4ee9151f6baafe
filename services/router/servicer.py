"""The gRPC surface. Translation only: proto to domain call, domain event to proto."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from crossdock.api.v1 import inference_pb2, inference_pb2_grpc
from services.router import translation, validation
from services.router.generation import Inference, InferenceCall

SERVICE_NAME: Final = "crossdock.api.v1.Inference"

# A drain neither refuses these nor waits for them: whoever waits for a stream may still abort it.
UNGATED_METHODS: Final = (f"/{SERVICE_NAME}/Abort", f"/{SERVICE_NAME}/ListModels")

# Unary and streaming contexts; grpc's stubs give them parameters that only they use.
_Context = Any


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """crossdock.api.v1.Inference. Errors are raised; the server's interceptor makes statuses."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def Generate(  # noqa: N802 -- named by the proto
        self, request: inference_pb2.GenerateRequest, context: _Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Streams the continuation of a prompt."""
        _check(request)
        call = translation.to_generate_call(request, context.time_remaining())
        async with aclosing(self._stream(call)) as responses:
            async for response in responses:
                yield response

    async def Chat(  # noqa: N802
        self, request: inference_pb2.ChatRequest, context: _Context
    ) -> AsyncIterator[inference_pb2.GenerateResponse]:
        """Streams the answer to chat messages."""
        _check(request)
        call = translation.to_chat_call(request, context.time_remaining())
        async with aclosing(self._stream(call)) as responses:
            async for response in responses:
                yield response

    async def Tokenize(  # noqa: N802
        self, request: inference_pb2.TokenizeRequest, context: _Context
    ) -> inference_pb2.TokenizeResponse:
        """Text to token ids."""
        del context
        _check(request)
        validation.check_model(request.model, self._inference.model)
        validation.check_text_bytes(request.text, validation.TOKENIZE_BYTES_MAX, "text")
        token_ids = await self._inference.prompter.encode_text(
            request.text, add_special_tokens=request.add_special_tokens
        )
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def Detokenize(  # noqa: N802
        self, request: inference_pb2.DetokenizeRequest, context: _Context
    ) -> inference_pb2.DetokenizeResponse:
        """Token ids to text."""
        del context
        _check(request)
        validation.check_model(request.model, self._inference.model)
        token_ids = tuple(request.token_ids)
        validation.check_token_ids(token_ids, self._inference.limits().vocab_size, "token_ids")
        return inference_pb2.DetokenizeResponse(
            text=await self._inference.prompter.decode(token_ids)
        )

    async def ListModels(  # noqa: N802
        self, request: inference_pb2.ListModelsRequest, context: _Context
    ) -> inference_pb2.ListModelsResponse:
        """The one model of the fleet."""
        del context
        _check(request)
        limits = self._inference.limits()
        model = inference_pb2.Model(
            id=self._inference.model,
            context_tokens_max=limits.context_tokens_max,
            vocab_size=limits.vocab_size,
        )
        return inference_pb2.ListModelsResponse(models=[model])

    async def Abort(  # noqa: N802
        self, request: inference_pb2.AbortRequest, context: _Context
    ) -> inference_pb2.AbortResponse:
        """Ends a live request."""
        del context
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


def register(servicer: InferenceServicer, server: grpc.aio.Server) -> None:
    """Adds the service to a server."""
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, server)


def _check(request: Message) -> None:
    validation.check_body_size(request.ByteSize())
