"""Calls to instances over gRPC. Translation only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import Any, Final

import grpc

from crossdock.api.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_pb2,
    prefill_pb2,
    prefill_pb2_grpc,
)
from crossdock.errors import CrossdockError, Reason
from crossdock.rpc.status import DETAILS_KEY, from_rpc_error
from crossdock.rpc.surroundings import REAL, Surroundings
from services.router.sampling import Sampling
from services.router.worker import (
    PAIR_BROKEN,
    AttemptOrder,
    DecodeUpdate,
    EngineFinish,
    InstanceReport,
    PrefillReply,
    PromptWork,
    Role,
    Token,
)

# DESIGN's unit of KV memory: an instance's pool is counted in blocks of this many tokens.
BLOCK_TOKENS: Final = 32

_FINISH: Final = {
    decode_pb2.ENGINE_FINISH_UNSPECIFIED: None,
    decode_pb2.ENGINE_FINISH_STOP: EngineFinish.STOP,
    decode_pb2.ENGINE_FINISH_LENGTH: EngineFinish.LENGTH,
}


class GrpcWorkers:
    """One channel an instance, opened at first use. Used on one event loop."""

    def __init__(
        self, prefill: Iterable[str], decode: Iterable[str], surroundings: Surroundings = REAL
    ) -> None:
        self._open_channel = surroundings.open_channel
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._prefill: dict[str, prefill_pb2_grpc.PrefillAsyncStub] = {}
        self._decode: dict[str, decode_pb2_grpc.DecodeAsyncStub] = {}
        for address in prefill:
            self._prefill[address] = prefill_pb2_grpc.PrefillStub(self._channel(address))
        for address in decode:
            self._decode[address] = decode_pb2_grpc.DecodeStub(self._channel(address))

    async def close(self) -> None:
        """Closes every channel; calls that still run end."""
        for channel in self._channels.values():
            await channel.close(None)

    async def prefill(self, order: AttemptOrder, timeout_s: float | None) -> PrefillReply:
        """See Workers."""
        assert order.prefill is not None
        request = prefill_pb2.PrefillRequest(
            **_to_both(order),
            target_instance_id=order.decode.instance_id,
            target_epoch=order.decode.epoch,
        )
        stub = self._prefill[order.prefill.address]
        try:
            reply = await stub.Prefill(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise _failure(error) from error
        work = PromptWork(
            cached_prompt_tokens=reply.cached_prompt_tokens,
            queue_ms=reply.queue_ms,
            prefill_ms=reply.prefill_ms,
            handoff_ms=reply.handoff_ms,
            handoff_bytes=reply.handoff_bytes,
            handoff_transfers=reply.handoff_transfers,
            handoff_transfer_ms=reply.handoff_transfer_ms,
            transport=reply.transport,
        )
        return PrefillReply(_from_token(reply.first_token), work)

    async def generate(
        self, order: AttemptOrder, timeout_s: float | None
    ) -> AsyncGenerator[DecodeUpdate, None]:
        """See Workers."""
        request = decode_pb2.DecodeRequest(**_to_both(order))
        if order.prefill is not None:
            request.source_instance_id = order.prefill.instance_id
            request.source_address = order.prefill.address
            request.source_epoch = order.prefill.epoch
        call = self._decode[order.decode.address].Generate(request, timeout=timeout_s)
        try:
            async for response in call:
                yield DecodeUpdate(
                    tokens=tuple(_from_token(token) for token in response.tokens),
                    finish=_FINISH.get(response.finish),
                    work=PromptWork(
                        cached_prompt_tokens=response.cached_prompt_tokens,
                        queue_ms=response.queue_ms,
                        prefill_ms=response.prefill_ms,
                    ),
                )
        except grpc.RpcError as error:
            raise _failure(error) from error
        finally:
            call.cancel()
            await call.code()

    async def report(self, role: Role, address: str, timeout_s: float) -> InstanceReport:
        """See Workers."""
        stub = self._prefill[address] if role is Role.PREFILL else self._decode[address]
        try:
            status = await stub.GetStatus(kv_pb2.InstanceRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise _failure(error) from error
        return InstanceReport(
            instance_id=status.instance_id,
            role=status.role,
            epoch=status.epoch,
            model=status.model,
            ready=status.ready,
            draining=status.draining,
            pool_tokens=status.num_blocks * BLOCK_TOKENS,
            queued_tokens=status.queued_tokens,
            context_tokens_max=status.context_tokens_max,
            vocab_size=status.vocab_size,
            eos_token_ids=tuple(status.eos_token_ids),
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = self._open_channel(address)
        return self._channels[address]


def _failure(error: grpc.RpcError) -> CrossdockError:
    """The error of a call. One that the instance made has details, one that gRPC made has none."""
    failure = from_rpc_error(error)
    if failure.reason == Reason.UNREACHABLE and isinstance(error, grpc.aio.AioRpcError):
        trailing: Any = error.trailing_metadata() or ()
        if any(key == DETAILS_KEY for key, _ in trailing):
            failure.reason = PAIR_BROKEN
    return failure


def _to_both(order: AttemptOrder) -> dict[str, Any]:
    """The fields that both instances are told alike."""
    return {
        "request_id": order.request_id,
        "handoff_id": order.handoff_id,
        "attempt": order.attempt,
        "token_ids": order.token_ids,
        "num_generated_tokens": order.num_generated_tokens,
        "sampling": _to_sampling(order.sampling),
        "return_logit_digests": order.return_logit_digests,
    }


def _to_sampling(sampling: Sampling) -> decode_pb2.TokenSampling:
    return decode_pb2.TokenSampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
    )


def _from_token(token: decode_pb2.GeneratedToken) -> Token:
    return Token(token.token_id, token.position, token.logit_digest)
