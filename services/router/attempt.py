"""One attempt: Decode.Generate and Prefill.Prefill at the same time, merged by position.

Life of an attempt:
1. Both calls go out. Tokens from either are merged; the sink sees each position once.
2. The prefill reply brings the timings and the first token. Its error counts only while the
   decode stream has brought no token: after the commit, the prefill instance is not needed.
   An error that may have come after the commit gives the stream a grace time to speak.
3. The attempt ends with the stream's end, with the sink's wish to stop, or with a failure.
4. Whatever way it ends, cancellation included, both calls are over when `run` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from crossdock.errors import CrossdockError, internal
from services.router.merge import TokenMerge
from services.router.verdict import Verdict, judge
from services.router.worker import (
    AttemptOrder,
    DecodeUpdate,
    EngineFinish,
    PrefillReply,
    PromptWork,
    Role,
    Token,
    Workers,
)

# How long a finished generation waits for the timings in the prefill reply, which follows the
# commit by one round trip.
REPLY_WAIT_S: Final = 0.5

# Takes new tokens in order; True ends the attempt, and later tokens are not wanted.
Sink = Callable[[Sequence[Token]], bool]
_Call: TypeAlias = "asyncio.Task[DecodeUpdate | PrefillReply | CrossdockError | None]"


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine ended the sequence, or the sink stopped it (`finish` is None then)."""

    finish: EngineFinish | None
    work: PromptWork


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt came to nothing more."""

    verdict: Verdict
    error: CrossdockError


class Attempt:
    """Runs one order once. Used on one event loop."""

    def __init__(
        self, workers: Workers, order: AttemptOrder, merge: TokenMerge, timeout_s: float | None
    ) -> None:
        self._workers = workers
        self._order = order
        self._merge = merge
        self._timeout_s = timeout_s
        self._decode_spoke = False
        self._stopped = False

    async def run(self, sink: Sink, on_prefill_end: Callable[[], None]) -> Finished | Failed:
        """The attempt's end. A cancellation is passed on once both calls are over."""
        decode: _Call = asyncio.create_task(self._read_decode(sink))
        calls = [decode]
        prefill: _Call | None = None
        if self._order.prefill is not None:
            prefill = asyncio.create_task(self._call_prefill(sink))
            prefill.add_done_callback(lambda _: on_prefill_end())
            calls.append(prefill)
        try:
            failed = await self._settle(decode, prefill)
            if failed is not None:
                return failed
            # The lease ends first; the reply then only brings the timings.
            await _end([decode])
            last = None if decode.cancelled() else decode.result()
            update = last if isinstance(last, DecodeUpdate) else DecodeUpdate(())
            reply = await _await_reply(prefill)
            finish = None if self._stopped else update.finish
            return Finished(finish, reply.work if reply is not None else update.work)
        finally:
            await _end(calls)

    async def _settle(self, decode: _Call, prefill: _Call | None) -> Failed | None:
        """Waits until the attempt is decided. None: it went well."""
        doubt: Failed | None = None
        pending = {decode} if prefill is None else {decode, prefill}
        while True:
            timeout_s = doubt.verdict.grace_s if doubt is not None else None
            done, pending = await asyncio.wait(
                pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._stopped:
                return None
            if decode in done:
                ended = decode.result()
                if isinstance(ended, CrossdockError):
                    return Failed(judge(Role.DECODE, ended, streaming=self._decode_spoke), ended)
                return None
            if not done:
                if not self._decode_spoke:
                    return doubt
                doubt = None
            elif prefill is not None:
                result = prefill.result()
                if isinstance(result, CrossdockError) and not self._decode_spoke:
                    doubt = Failed(judge(Role.PREFILL, result), result)

    async def _read_decode(self, sink: Sink) -> DecodeUpdate | CrossdockError | None:
        try:
            async with aclosing(self._workers.generate(self._order, self._timeout_s)) as updates:
                async for update in updates:
                    if update.tokens:
                        self._decode_spoke = True
                        self._take(update.tokens, sink)
                    if self._stopped:
                        return None
                    if update.finish is not None:
                        return update
        except CrossdockError as error:
            return error
        return internal(
            f"{self._order.decode.instance_id} ended its stream without a finish reason"
        )

    async def _call_prefill(self, sink: Sink) -> PrefillReply | CrossdockError:
        try:
            reply = await self._workers.prefill(self._order, self._timeout_s)
        except CrossdockError as error:
            return error
        # Not under the `try`: that the two instances disagree is an error at any time.
        if not self._stopped:
            self._take((reply.first_token,), sink)
        return reply

    def _take(self, tokens: Sequence[Token], sink: Sink) -> None:
        fresh = self._merge.offer(tokens)
        if fresh and sink(fresh):
            self._stopped = True


async def _await_reply(prefill: _Call | None) -> PrefillReply | None:
    if prefill is None:
        return None
    await asyncio.wait({prefill}, timeout=REPLY_WAIT_S)
    result = prefill.result() if prefill.done() else None
    return result if isinstance(result, PrefillReply) else None


async def _end(calls: Sequence[_Call]) -> None:
    """Cancels what still runs and waits until it is over; a bug inside a call is raised here."""
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    for call in calls:
        if not call.cancelled():
            call.result()
