"""Prefill over gRPC: translation only."""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the service.

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc

from crossdock.api.v1 import decode_pb2, kv_pb2, prefill_pb2, prefill_pb2_grpc
from crossdock.engine.front import Front
from crossdock.engine.pair_servicer import serve_pair
from crossdock.engine.translation import digest_bytes, request_of, status_of
from services.prefill.prefilling import HandedOff, Prefilling, Target

NAME = prefill_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name
# A drain neither refuses nor waits for these: running handoffs need their pairs to the end.
UNGATED = (f"/{NAME}/GetStatus", f"/{NAME}/Connect")


class PrefillServicer(prefill_pb2_grpc.PrefillServicer):
    """Errors are turned into statuses by the server's interceptor."""

    def __init__(self, front: Front, prefilling: Prefilling) -> None:
        self._front = front
        self._prefilling = prefilling

    async def Prefill(
        self, request: prefill_pb2.PrefillRequest, context: Any
    ) -> prefill_pb2.PrefillResponse:
        target = Target(request.target_instance_id, request.target_epoch)
        result = await self._prefilling.run(request_of(request), target)
        return _response_of(result, wants_digests=request.return_logit_digests)

    def Connect(
        self, request: kv_pb2.ConnectRequest, context: Any
    ) -> AsyncGenerator[kv_pb2.ConnectResponse, None]:
        return serve_pair(self._front.supervisor.current(), self._front.instance_id, request)

    async def GetStatus(
        self, request: kv_pb2.InstanceRequest, context: Any
    ) -> kv_pb2.InstanceStatus:
        return await status_of(self._front)


def register(servicer: PrefillServicer) -> Callable[[grpc.aio.Server], None]:
    """Adds the servicer to a server."""
    return lambda server: prefill_pb2_grpc.add_PrefillServicer_to_server(servicer, server)


def _response_of(result: HandedOff, *, wants_digests: bool) -> prefill_pb2.PrefillResponse:
    done = result.done
    token = decode_pb2.GeneratedToken(token_id=done.first_token, position=done.position)
    if wants_digests:
        token.logit_digest = digest_bytes(done.digest_low, done.digest_high)
    return prefill_pb2.PrefillResponse(
        first_token=token,
        cached_prompt_tokens=done.num_cached_tokens,
        queue_ms=done.queue_ns / 1e6,
        prefill_ms=done.prefill_ns / 1e6,
        handoff_ms=done.handoff_ns / 1e6,
        handoff_bytes=done.handoff_bytes,
        handoff_transfers=done.num_transfers,
        handoff_transfer_ms=done.transfer_ns / 1e6,
        transport=result.transport,
    )
