"""Callers of the public API: they ask, read, lose patience, go away, and remember what they got."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
from grpc.aio import AioRpcError

from crossdock.api.v1 import inference_pb2, inference_pb2_grpc
from tests.sim.network import Network
from tests.sim.rpc_client import Channel
from tests.sim.scenario import Ask
from tests.sim.virtual_loop import Process, VirtualLoop

_ABORT_ANSWERS = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass
class Outcome:
    """What a caller saw. `code` is None until the stream ended."""

    ask: Ask
    tokens: list[int] = field(default_factory=list)
    reason: int | None = None
    num_finishes: int = 0
    num_after_finish: int = 0
    code: grpc.StatusCode | None = None
    details: str = ""
    num_endings: int = 0
    started: bool = False
    gone: bool = False  # the caller itself was killed
    cancelled: bool = False  # by the caller
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_attempts: int = 0

    @property
    def over(self) -> bool:
        return self.gone or self.code is not None

    def line(self) -> str:
        code = self.code.name if self.code is not None else "none"
        return f"{self.ask.request_id} {code} {self.reason} {self.tokens} {self.details}"


class Caller:
    """One request in a process of its own."""

    def __init__(self, loop: VirtualLoop, network: Network, ask: Ask, address: str) -> None:
        self.outcome = Outcome(ask)
        self._loop = loop
        self._network = network
        self._address = address
        self.process = Process(f"caller-{ask.request_id}", "outside", loop)
        self.task = self.process.spawn(self._run(ask))

    def kill(self) -> None:
        if not self.outcome.over:
            self.outcome.gone = True
            self.process.kill()

    async def _run(self, ask: Ask) -> None:
        await asyncio.sleep(ask.at_s)
        self.outcome.started = True
        async with Channel(self._network, self._address) as channel:
            stub = inference_pb2_grpc.InferenceStub(cast(Any, channel))
            call = stub.Generate(request_of(ask), timeout=ask.timeout_s)
            timers = []
            if ask.cancel_after_s is not None:
                timers.append(self._loop.call_later(ask.cancel_after_s, self._cancel, call))
            abort = None
            if ask.abort_after_s is not None:
                abort = asyncio.create_task(self._abort(stub, ask))
            await self._read(call, ask)
            for timer in timers:
                timer.cancel()
            if abort is not None:
                await abort
        self.process.kill()

    def _cancel(self, call: Any) -> None:
        self.outcome.cancelled = call.cancel()

    async def _abort(self, stub: Any, ask: Ask) -> None:
        await asyncio.sleep(ask.abort_after_s or 0.0)
        try:
            await stub.Abort(inference_pb2.AbortRequest(request_id=ask.request_id), timeout=5.0)
        except AioRpcError as error:  # it ended before, or the router is away
            if error.code() not in _ABORT_ANSWERS:
                raise

    async def _read(self, call: Any, ask: Ask) -> None:
        outcome = self.outcome
        try:
            async for response in call:
                outcome.num_after_finish += outcome.num_finishes
                outcome.tokens.extend(response.token_ids)
                if response.HasField("finish"):
                    outcome.num_finishes += 1
                    outcome.reason = response.finish.reason
                    outcome.completion_tokens = response.finish.usage.completion_tokens
                    outcome.cached_tokens = response.finish.usage.cached_prompt_tokens
                    outcome.num_attempts = response.finish.timings.attempts
                if ask.read_pause_s:
                    await asyncio.sleep(ask.read_pause_s)
            outcome.code = grpc.StatusCode.OK
        except AioRpcError as error:
            outcome.code, outcome.details = error.code(), error.details() or ""
        except asyncio.CancelledError:
            if not outcome.cancelled:
                raise
            outcome.code = grpc.StatusCode.CANCELLED
        outcome.num_endings += 1


def request_of(ask: Ask) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=ask.request_id,
        token_ids=inference_pb2.TokenIds(ids=ask.prompt),
        sampling=inference_pb2.SamplingParams(
            temperature=ask.temperature,
            top_k=ask.top_k,
            top_p=ask.top_p,
            seed=ask.seed,
            max_tokens=ask.max_tokens,
            min_tokens=ask.min_tokens,
            ignore_eos=ask.ignore_eos,
            stop_token_ids=ask.stop_token_ids,
        ),
    )
