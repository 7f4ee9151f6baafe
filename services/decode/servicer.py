"""Decode over gRPC: translation only."""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the service.

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from crossdock import _native as native
from crossdock.api.v1 import decode_pb2, decode_pb2_grpc, kv_pb2
from crossdock.engine.front import Front
from crossdock.engine.translation import request_of, status_of, token_message
from services.decode.generation import Chunk, Generation
from services.decode.source_client import Source

NAME = decode_pb2.DESCRIPTOR.services_by_name["Decode"].full_name
STATUS_METHOD = f"/{NAME}/GetStatus"

_FINISH = {
    native.Finish.NONE: decode_pb2.ENGINE_FINISH_UNSPECIFIED,
    native.Finish.STOP: decode_pb2.ENGINE_FINISH_STOP,
    native.Finish.LENGTH: decode_pb2.ENGINE_FINISH_LENGTH,
}


class DecodeServicer(decode_pb2_grpc.DecodeServicer):
    """Errors are turned into statuses by the server's interceptor."""

    def __init__(self, front: Front, generation: Generation) -> None:
        self._front = front
        self._generation = generation

    async def Generate(
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        wants_digests = request.return_logit_digests
        chunks = self._generation.run(request_of(request), _source_of(request))
        async with aclosing(chunks):
            async for chunk in chunks:
                yield _response_of(chunk, wants_digests=wants_digests)

    async def GetStatus(
        self, request: kv_pb2.InstanceRequest, context: Any
    ) -> kv_pb2.InstanceStatus:
        return await status_of(self._front)


def _source_of(request: decode_pb2.DecodeRequest) -> Source | None:
    named = request.source_instance_id or request.source_address or request.source_epoch
    if not named:
        return None
    return Source(request.source_instance_id, request.source_address, request.source_epoch)


def _response_of(chunk: Chunk, *, wants_digests: bool) -> decode_pb2.DecodeResponse:
    response = decode_pb2.DecodeResponse(
        tokens=[token_message(token, wants_digests=wants_digests) for token in chunk.tokens]
    )
    if chunk.finish != native.Finish.NONE:
        response.finish = _FINISH[native.Finish(chunk.finish)]
        if chunk.started is not None:
            response.cached_prompt_tokens = chunk.started.num_cached_tokens
            response.queue_ms = chunk.started.queue_ns / 1e6
            response.prefill_ms = chunk.started.prefill_ns / 1e6
    return response


def register(servicer: DecodeServicer) -> Callable[[grpc.aio.Server], None]:
    """Adds the servicer to a server."""
    return lambda server: decode_pb2_grpc.add_DecodeServicer_to_server(servicer, server)
