"""Prefill and decode instances without an engine: real gRPC, and a script for every failure.

A prefill call *commits* its handoff by setting an event that the decode call of the same handoff
waits for, as the real instances do over the data path. Tokens are a function of position and seed
alone, as the engine's are, so a replay's continuation can be compared with the original.
"""

# ruff: noqa: N802, ARG002 - the names and parameters are those of the services.

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from crossdock.api.v1 import decode_pb2, decode_pb2_grpc, kv_pb2, prefill_pb2, prefill_pb2_grpc
from crossdock.errors import CrossdockError, handoff_refused
from crossdock.rpc.server import RpcServer

CONTEXT_TOKENS_MAX = 1024
VOCAB_SIZE = 512
EOS = 2
FIRST_TEXT_ID = 3
WAIT_S = 60.0


def text_token(position: int, seed: int) -> int:
    """A lower-case letter of the tiny tokenizer, by position and seed."""
    return LETTERS[(position * 7 + seed) % len(LETTERS)]


# Filled by the fixtures from the model's own tokenizer.
LETTERS: list[int] = []


@dataclass
class DecodeScript:
    """What a decode instance does with one call. The default serves it."""

    error: CrossdockError | None = None  # before the commit, or as the next ones say
    fail_after: int | None = None  # tokens, then `error`
    is_away_then: bool = False  # its reports say so from then on
    hold_after: int | None = None  # tokens, then waits for `release`
    tokens: list[int] | None = None  # what it generates; by default, letters
    per_message: int = 1
    end_without_finish: bool = False  # all tokens, then `error` if there is one

    @property
    def streams(self) -> bool:
        return self.error is None or self.fail_after is not None or self.end_without_finish


@dataclass
class PrefillScript:
    """What a prefill instance does with one call."""

    fail_before: CrossdockError | None = None
    fail_after: CrossdockError | None = None
    hang: bool = False  # never commits


class Fabric:
    """The data path between the fakes: which handoffs are committed."""

    def __init__(self) -> None:
        self.commits: defaultdict[bytes, asyncio.Event] = defaultdict(asyncio.Event)
        self.answers: defaultdict[bytes, asyncio.Event] = defaultdict(asyncio.Event)
        self.refusals: dict[bytes, CrossdockError] = {}
        self.release = asyncio.Event()


@dataclass
class _Instance:
    fabric: Fabric
    instance_id: str
    role: str
    epoch: int = 11
    ready: bool = True
    num_blocks: int = 64
    queued_tokens: int = 0
    num_live: int = 0
    requests: list[Any] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""
    reports: asyncio.Event = field(default_factory=asyncio.Event)  # Set: it tells of itself.

    def __post_init__(self) -> None:
        self.reports.set()

    async def status(self) -> kv_pb2.InstanceStatus:
        await self.reports.wait()
        return kv_pb2.InstanceStatus(
            instance_id=self.instance_id,
            role=self.role,
            epoch=self.epoch,
            ready=self.ready,
            num_blocks=self.num_blocks,
            context_tokens_max=CONTEXT_TOKENS_MAX,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[EOS],
            queued_tokens=self.queued_tokens,
        )

    @contextlib.contextmanager
    def live(self, request: Any) -> Iterator[None]:
        self.requests.append(request)
        self.num_live += 1
        self.started.set()
        try:
            yield
        finally:
            self.num_live -= 1

    async def serve(self, name: str, register: Any) -> None:
        self.server = RpcServer(self.instance_id, ungated=[f"/{name}/GetStatus"])
        self.server.add(name, register)
        port = await self.server.start("127.0.0.1", 0)
        await self.server.set_serving(True)
        self.address = f"127.0.0.1:{port}"

    async def kill(self) -> None:
        """As its process dying: running calls break."""
        await self.server._server.stop(0)


class FakeDecode(decode_pb2_grpc.DecodeServicer):
    def __init__(self, fabric: Fabric, instance_id: str) -> None:
        self.instance = _Instance(fabric, instance_id, "decode")
        self.scripts: list[DecodeScript] = []

    async def start(self) -> None:
        await self.instance.serve(
            "crossdock.api.v1.Decode",
            lambda server: decode_pb2_grpc.add_DecodeServicer_to_server(self, server),
        )

    async def GetStatus(self, request: Any, context: Any) -> kv_pb2.InstanceStatus:
        return await self.instance.status()

    async def Generate(
        self, request: decode_pb2.DecodeRequest, context: Any
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        script = self.scripts.pop(0) if self.scripts else DecodeScript()
        with self.instance.live(request):
            fabric = self.instance.fabric
            if script.error is not None and not script.streams:
                fabric.refusals[request.handoff_id] = script.error
                fabric.answers[request.handoff_id].set()
                raise script.error
            if request.handoff_id:
                await fabric.commits[request.handoff_id].wait()
                fabric.answers[request.handoff_id].set()
            async for response in self._tokens(request, script):
                yield response

    async def _tokens(
        self, request: decode_pb2.DecodeRequest, script: DecodeScript
    ) -> AsyncGenerator[decode_pb2.DecodeResponse, None]:
        sampling, start = request.sampling, len(request.token_ids)
        response = decode_pb2.DecodeResponse()
        for index in range(sampling.max_tokens):
            if script.fail_after == index:
                if response.tokens:
                    yield response
                assert script.error is not None
                self.instance.ready = not script.is_away_then
                raise script.error
            if script.hold_after == index:
                if response.tokens:
                    yield response
                    response = decode_pb2.DecodeResponse()
                await self.instance.fabric.release.wait()
            position = start + index
            token_id = (
                script.tokens[index] if script.tokens else text_token(position, sampling.seed)
            )
            token = response.tokens.add(token_id=token_id, position=position)
            if request.return_logit_digests:
                token.logit_digest = position.to_bytes(16, "little")
            stops = {EOS, *sampling.stop_token_ids} if not sampling.ignore_eos else set()
            stops |= set(sampling.stop_token_ids)
            if token_id in stops or index + 1 == sampling.max_tokens:
                if not script.end_without_finish:
                    response.finish = (
                        decode_pb2.ENGINE_FINISH_STOP
                        if token_id in stops
                        else decode_pb2.ENGINE_FINISH_LENGTH
                    )
                yield response
                if script.end_without_finish and script.error is not None:
                    raise script.error
                return
            if len(response.tokens) >= script.per_message:
                yield response
                response = decode_pb2.DecodeResponse()


class FakePrefill(prefill_pb2_grpc.PrefillServicer):
    def __init__(self, fabric: Fabric, instance_id: str) -> None:
        self.instance = _Instance(fabric, instance_id, "prefill")
        self.scripts: list[PrefillScript] = []
        self.first_tokens: list[int] = []

    async def start(self) -> None:
        await self.instance.serve(
            "crossdock.api.v1.Prefill",
            lambda server: prefill_pb2_grpc.add_PrefillServicer_to_server(self, server),
        )

    async def GetStatus(self, request: Any, context: Any) -> kv_pb2.InstanceStatus:
        return await self.instance.status()

    def Connect(self, request: Any, context: Any) -> AsyncIterator[kv_pb2.ConnectResponse]:
        raise AssertionError("the router makes no pairs")

    async def Prefill(
        self, request: prefill_pb2.PrefillRequest, context: Any
    ) -> prefill_pb2.PrefillResponse:
        script = self.scripts.pop(0) if self.scripts else PrefillScript()
        with self.instance.live(request):
            if script.fail_before is not None:
                raise script.fail_before
            if script.hang:
                await asyncio.Event().wait()
            self.instance.fabric.commits[request.handoff_id].set()
            if script.fail_after is not None:
                raise script.fail_after
            # As in the real one, the reply stands for an acknowledged commit.
            await self.instance.fabric.answers[request.handoff_id].wait()
            if request.handoff_id in self.instance.fabric.refusals:
                raise handoff_refused("the decode instance refused")
            position = len(request.token_ids)
            first = self.first_tokens.pop(0) if self.first_tokens else None
            token = decode_pb2.GeneratedToken(
                token_id=text_token(position, request.sampling.seed) if first is None else first,
                position=position,
            )
            if request.return_logit_digests:
                token.logit_digest = position.to_bytes(16, "little")
            return prefill_pb2.PrefillResponse(
                first_token=token,
                cached_prompt_tokens=1,
                queue_ms=1.5,
                prefill_ms=2.5,
                handoff_ms=0.5,
                handoff_bytes=4096,
                handoff_transfers=3,
                handoff_transfer_ms=0.25,
                transport="shm",
            )
