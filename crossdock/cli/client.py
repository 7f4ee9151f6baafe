"""The command line's view of a fleet over gRPC: requests to the router, status of the rest."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc

from crossdock.api.v1 import (
    decode_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    kv_pb2,
    kvstore_pb2_grpc,
    prefill_pb2_grpc,
)
from crossdock.api.v1.inference_pb2 import ChatMessage, SamplingParams
from crossdock.cli.fleet_plan import Role
from crossdock.rpc.channel import open_channel
from crossdock.rpc.status import from_rpc_error

_FINISH_NAMES = {
    inference_pb2.FINISH_REASON_STOP: "stop",
    inference_pb2.FINISH_REASON_LENGTH: "length",
    inference_pb2.FINISH_REASON_ABORT: "abort",
}


@dataclass(slots=True)
class Outcome:
    """What a request came to, filled as its stream is read."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)


class RouterClient:
    """Requests to one router. Used on one event loop; an async context manager."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._address)
        self._stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(
            self._channel
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._channel.close(None)

    def generate(
        self, prompt: str, model: str, sampling: SamplingParams, outcome: Outcome
    ) -> AsyncIterator[str]:
        """The continuation's text as it comes; `outcome` is complete at its end."""
        request = inference_pb2.GenerateRequest(text=prompt, model=model, sampling=sampling)
        return self._stream(self._stub.Generate(request, timeout=self._timeout_s), outcome)

    def chat(
        self,
        messages: Sequence[ChatMessage],
        model: str,
        sampling: SamplingParams,
        outcome: Outcome,
    ) -> AsyncIterator[str]:
        """The answer's text as it comes; `outcome` is complete at its end."""
        request = inference_pb2.ChatRequest(messages=messages, model=model, sampling=sampling)
        return self._stream(self._stub.Chat(request, timeout=self._timeout_s), outcome)

    async def _stream(
        self, call: AsyncIterable[inference_pb2.GenerateResponse], outcome: Outcome
    ) -> AsyncIterator[str]:
        try:
            async for response in call:
                outcome.text += response.text
                outcome.token_ids.extend(response.token_ids)
                if response.HasField("finish"):
                    finish = response.finish
                    outcome.finish_reason = _FINISH_NAMES.get(finish.reason, "unspecified")
                    outcome.usage = _fields(finish.usage)
                    outcome.timings = _fields(finish.timings)
                if response.text:
                    yield response.text
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


async def instance_status(role: Role, address: str, timeout_s: float) -> dict[str, Any]:
    """What an instance says of itself, by proto field name; a router only says that it serves.

    Raises CrossdockError when it does not answer.
    """
    channel = open_channel(address)
    try:
        if role == "router":
            health = health_pb2_grpc.HealthStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            serving = answer.status == health_pb2.HealthCheckResponse.SERVING
            return {"role": role, "ready": serving, "draining": False}
        request = kv_pb2.InstanceRequest()
        stub = {
            "prefill": prefill_pb2_grpc.PrefillStub,
            "decode": decode_pb2_grpc.DecodeStub,
            "kvstore": kvstore_pb2_grpc.KvStoreStub,
        }[role](channel)
        return _fields(await stub.GetStatus(request, timeout=timeout_s))
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error
    finally:
        await channel.close(None)


def _fields(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    # 64-bit integers are strings in JSON, for readers that have only doubles.
    for descriptor in message.DESCRIPTOR.fields:
        value = fields.get(descriptor.name)
        if isinstance(value, str) and descriptor.cpp_type in (
            descriptor.CPPTYPE_UINT64,
            descriptor.CPPTYPE_INT64,
        ):
            fields[descriptor.name] = int(value)
    return fields
