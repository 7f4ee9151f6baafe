"""A request's life in a decode instance: checked, paired, expected, streamed, ended once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from crossdock import _native as native
from crossdock.engine import limits
from crossdock.engine.client import Engine
from crossdock.engine.front import Front
from crossdock.engine.sequence import SequenceEvent
from crossdock.engine.validation import Request, check_request, check_text
from crossdock.errors import invalid_argument
from services.decode.source_client import Source, Sources


@dataclass
class Chunk:
    """Tokens that were ready together, and how their sequence began. The last chunk of a request
    has a finish.
    """

    started: native.Started | None
    tokens: list[native.SequenceToken] = field(default_factory=list)
    finish: native.Finish = native.Finish.NONE


class Generation:
    """Runs requests on the front's engine."""

    def __init__(self, front: Front, sources: Sources) -> None:
        self._front = front
        self._sources = sources

    async def run(self, request: Request, source: Source | None) -> AsyncGenerator[Chunk, None]:
        """Yields chunks until the one with the finish. However the iteration ends, the engine holds
        nothing for the request any more.
        """
        engine = self._front.supervisor.current()
        check_request(request, engine.ready, needs_handoff=False)
        _check_source(request, source)
        _check_room(request, engine.ready)
        with self._front.live.claim(request):
            command = await self._command(engine, request, source)
            sequence = engine.open(command, local=source is None)
            try:
                chunk = Chunk(None)
                while chunk.finish == native.Finish.NONE:
                    chunk = _chunk_of(await sequence.take(), chunk.started)
                    if chunk.tokens:
                        yield chunk
            finally:
                engine.close(sequence)

    async def _command(
        self, engine: Engine, request: Request, source: Source | None
    ) -> Callable[[int], native.Command]:
        if source is None:
            return lambda sequence_id: native.Generate(task=request.task(sequence_id))
        pair = await self._sources.ready(engine, source)
        return lambda sequence_id: native.Expect(
            task=request.task(sequence_id),
            handoff_high=request.handoff_high,
            handoff_low=request.handoff_low,
            attempt=request.attempt,
            source_epoch=pair.remote.epoch,
        )


def _chunk_of(events: list[SequenceEvent], started: native.Started | None) -> Chunk:
    chunk = Chunk(started)
    for event in events:
        match event:
            case native.Started():
                chunk.started = event
            case native.SequenceToken():
                chunk.tokens.append(event)
                chunk.finish = event.finish
    return chunk


def _check_room(request: Request, ready: native.Ready) -> None:
    """The whole sequence must fit, or it could not end. The prompt is checked already."""
    pool_tokens = ready.num_blocks * limits.BLOCK_TOKENS
    room_tokens = min(ready.context_tokens_max, pool_tokens) - len(request.token_ids)
    if request.sampling.max_tokens > room_tokens:
        raise invalid_argument(
            "sampling.max_tokens",
            f"is {request.sampling.max_tokens}; after a prompt of {len(request.token_ids)} tokens "
            f"at most {room_tokens} fit the context of {ready.context_tokens_max} tokens and the "
            f"KV memory of {pool_tokens}",
        )


def _check_source(request: Request, source: Source | None) -> None:
    if source is None:
        if request.handoff_id:
            raise invalid_argument(
                "source_instance_id", "must name the prefill instance that hands off"
            )
        return
    if not request.handoff_id:
        raise invalid_argument("handoff_id", "must be set when a source is named")
    check_text("source_instance_id", source.instance_id, limits.INSTANCE_ID_BYTES_MAX)
    check_text("source_address", source.address, limits.ADDRESS_BYTES_MAX)
    if source.epoch == 0:
        raise invalid_argument("source_epoch", "must not be 0")
