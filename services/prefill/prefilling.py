"""A request's life in a prefill instance: checked, paired, computed, handed off."""

from __future__ import annotations

from dataclasses import dataclass

from crossdock import _native as native
from crossdock.engine import limits
from crossdock.engine.front import Front
from crossdock.engine.validation import Request, check_request, check_text
from crossdock.errors import invalid_argument


@dataclass(frozen=True)
class Target:
    """The decode instance that a request names."""

    instance_id: str
    epoch: int


@dataclass(frozen=True)
class HandedOff:
    """What the engine reports once the commit was acknowledged, and over what it went."""

    done: native.HandoffDone
    transport: str


class Prefilling:
    """Runs requests on the front's engine."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def run(self, request: Request, target: Target) -> HandedOff:
        """Returns once the target acknowledged. However it ends, the engine holds nothing for
        the request any more but what its transfers still need.
        """
        engine = self._front.supervisor.current()
        check_request(request, engine.ready, needs_handoff=True)
        check_text("target_instance_id", target.instance_id, limits.INSTANCE_ID_BYTES_MAX)
        if target.epoch == 0:
            raise invalid_argument("target_epoch", "must not be 0")
        with self._front.live.claim(request):
            # The target makes the pair, at the same request: it may be on its way.
            pair = await engine.peers.ready_with(
                target.instance_id, target.epoch, limits.PAIR_READY_MAX_S
            )
            sequence = engine.open(
                lambda sequence_id: native.Prefill(
                    task=request.task(sequence_id),
                    handoff_high=request.handoff_high,
                    handoff_low=request.handoff_low,
                    attempt=request.attempt,
                    peer_id=pair.peer_id,
                )
            )
            try:
                while True:
                    for event in await sequence.take():
                        if isinstance(event, native.HandoffDone):
                            return HandedOff(event, pair.transport)
            finally:
                engine.close(sequence)
