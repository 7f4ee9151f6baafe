"""Prefill, decode and kvstore fronts in this process, each around a real engine of its own."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from crossdock import _native as native
from crossdock.api.v1 import (
    decode_pb2,
    decode_pb2_grpc,
    kv_pb2,
    kvstore_pb2_grpc,
    prefill_pb2,
    prefill_pb2_grpc,
)
from crossdock.engine.process import EngineConfig, ProcessLauncher, engine_path
from crossdock.rpc.channel import open_channel
from crossdock.rpc.serving import Service
from crossdock.rpc.settings import ServiceSettings
from services.decode.__main__ import DecodeService
from services.kvstore.__main__ import KvStoreService
from services.kvstore.tier import Tier
from services.prefill.__main__ import PrefillService

SETTINGS = ServiceSettings(drain_timeout=5)
KV_MEMORY_BYTES = 8 << 20
STORE_MEMORY_BYTES = 32 << 20
VOCAB_SIZE = 512
REQUEST_MAX_S = 120.0


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    draw = random.Random(f"{num_tokens}/{seed}")
    return [draw.randrange(VOCAB_SIZE) for _ in range(num_tokens)]


@dataclass
class Instance:
    """One service, and a stub to it."""

    instance_id: str
    address: str
    stub: Any

    async def status(self) -> kv_pb2.InstanceStatus:
        reply: kv_pb2.InstanceStatus = await self.stub.GetStatus(
            kv_pb2.InstanceRequest(), timeout=30
        )
        return reply

    async def until(
        self, condition: Callable[[kv_pb2.InstanceStatus], bool], timeout_s: float = 60
    ) -> kv_pb2.InstanceStatus:
        """The first status that satisfies the condition."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                status = await self.status()
            except grpc.aio.AioRpcError:
                status = kv_pb2.InstanceStatus()
            if condition(status):
                return status
            assert asyncio.get_running_loop().time() < deadline, status
            await asyncio.sleep(0.02)

    async def until_free(self) -> kv_pb2.InstanceStatus:
        """Once every block is free or cached, and nothing runs."""
        return await self.until(
            lambda status: (
                status.num_blocks > 0
                and status.num_free_blocks + status.num_cached_blocks == status.num_blocks
                and status.num_reserved_sequences == 0
                and status.num_handoffs == 0
            )
        )


@dataclass
class Answer:
    """What a request gave."""

    tokens: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    cached_prompt_tokens: int = 0
    finish: int = decode_pb2.ENGINE_FINISH_UNSPECIFIED
    prefill: prefill_pb2.PrefillResponse | None = None

    def add(self, message: decode_pb2.DecodeResponse) -> None:
        for token in message.tokens:
            self.tokens.append(token.token_id)
            self.digests.append(token.logit_digest)
            self.positions.append(token.position)
        if message.finish:
            self.finish = message.finish
            self.cached_prompt_tokens = message.cached_prompt_tokens


@dataclass
class Handoff:
    """The two calls of a request that is handed off."""

    decode_call: Any
    prefill_call: Any

    async def answer(self) -> Answer:
        answer = Answer()
        async for message in self.decode_call:
            answer.add(message)
        answer.prefill = await self.prefill_call
        return answer

    def cancel(self) -> None:
        self.decode_call.cancel()
        self.prefill_call.cancel()


@dataclass
class Pair:
    """One prefill and one decode instance, and how a router would call them."""

    prefill: Instance
    decode: Instance
    store: Instance | None = None

    async def start(self, token_ids: list[int], max_tokens: int = 8, **changes: Any) -> Handoff:
        source, target = await self.prefill.status(), await self.decode.status()
        return self.start_between(source, target, request_fields(token_ids, max_tokens, changes))

    def start_between(
        self,
        source: kv_pb2.InstanceStatus,
        target: kv_pb2.InstanceStatus,
        fields: dict[str, Any],
    ) -> Handoff:
        handoff_id = secrets.token_bytes(16)
        decode_call = self.decode.stub.Generate(
            decode_pb2.DecodeRequest(
                handoff_id=handoff_id,
                source_instance_id=self.prefill.instance_id,
                source_address=self.prefill.address,
                source_epoch=source.epoch,
                **fields,
            ),
            timeout=REQUEST_MAX_S,
        )
        prefill_call = self.prefill.stub.Prefill(
            prefill_pb2.PrefillRequest(
                handoff_id=handoff_id,
                target_instance_id=self.decode.instance_id,
                target_epoch=target.epoch,
                **fields,
            ),
            timeout=REQUEST_MAX_S,
        )
        return Handoff(decode_call, prefill_call)

    async def handed_off(self, token_ids: list[int], max_tokens: int = 8, **changes: Any) -> Answer:
        return await (await self.start(token_ids, max_tokens, **changes)).answer()

    async def local(self, token_ids: list[int], max_tokens: int = 8, **changes: Any) -> Answer:
        answer = Answer()
        fields = request_fields(token_ids, max_tokens, changes)
        async for message in self.decode.stub.Generate(
            decode_pb2.DecodeRequest(**fields), timeout=REQUEST_MAX_S
        ):
            answer.add(message)
        return answer


def request_fields(
    token_ids: list[int], max_tokens: int, changes: dict[str, Any]
) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "top_p": 1.0, "max_tokens": max_tokens, "ignore_eos": True}
    return {
        "request_id": secrets.token_hex(8),
        "attempt": 1,
        "token_ids": token_ids,
        "sampling": decode_pb2.TokenSampling(**(sampling | changes)),
        "return_logit_digests": True,
    }


def _config(model: Path, instance_id: str, store: bool, changes: dict[str, Any]) -> EngineConfig:
    fields: dict[str, Any] = {"kv_memory_bytes": KV_MEMORY_BYTES, "verify_handoff": True}
    return EngineConfig(
        model_directory=str(model), instance_id=instance_id, store=store, **(fields | changes)
    )


def _launcher(config: EngineConfig) -> ProcessLauncher:
    return ProcessLauncher(config, engine_path(os.environ))


@asynccontextmanager
async def _serving(
    service: Service, instance_id: str, make_stub: Callable[[grpc.aio.Channel], Any]
) -> AsyncIterator[Instance]:
    try:
        address = (await service.start())["address"]
        async with open_channel(address) as channel:
            yield Instance(instance_id, address, make_stub(channel))
    finally:
        await service.drain()


@asynccontextmanager
async def decode_instance(model: Path, **changes: Any) -> AsyncIterator[Instance]:
    config = _config(model, "decode-1", False, changes)
    service = DecodeService(SETTINGS, config, _launcher(config))
    async with _serving(service, "decode-1", decode_pb2_grpc.DecodeStub) as instance:
        yield instance


@asynccontextmanager
async def prefill_instance(
    model: Path, store_address: str = "", **changes: Any
) -> AsyncIterator[Instance]:
    config = _config(model, "prefill-1", bool(store_address), changes)
    service = PrefillService(SETTINGS, config, _launcher(config), store_address)
    async with _serving(service, "prefill-1", prefill_pb2_grpc.PrefillStub) as instance:
        yield instance


@asynccontextmanager
async def store_instance(transport: str = "auto", port: int = 0) -> AsyncIterator[Instance]:
    epoch = secrets.randbits(64) | 1
    segment = native.Segment(transport=transport, segment_bytes=STORE_MEMORY_BYTES, epoch=epoch)
    tier = Tier(STORE_MEMORY_BYTES, epoch)
    settings = ServiceSettings(port=port, drain_timeout=5)
    service = KvStoreService(settings, "kvstore-1", epoch, segment, tier)
    async with _serving(service, "kvstore-1", kvstore_pb2_grpc.KvStoreStub) as instance:
        yield instance


@asynccontextmanager
async def running_pair(model: Path, *, with_store: bool = False, **changes: Any) -> Any:
    async with AsyncExitStack() as stack:
        transport = changes.get("transport", "auto")
        store = await stack.enter_async_context(store_instance(transport)) if with_store else None
        address = store.address if store is not None else ""
        prefill = await stack.enter_async_context(prefill_instance(model, address, **changes))
        decode = await stack.enter_async_context(decode_instance(model, **changes))
        yield Pair(prefill, decode, store)


@pytest.fixture(params=["shm", "tcp"])
async def pair(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[Pair]:
    async with running_pair(tiny_model, transport=request.param) as running:
        yield running
