"""The store: tier and pairs on one clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from crossdock.engine.peers import PairTerms, Remote
from crossdock.errors import unreachable
from services.kvstore.pairs import Segment, StorePairs
from services.kvstore.tier import Hash, Lease, Tier


class Store:
    """Used on one event loop. `is_draining` is asked for status replies."""

    def __init__(
        self,
        instance_id: str,
        epoch: int,
        segment: Segment,
        tier: Tier,
        is_draining: Callable[[], bool],
    ) -> None:
        self.instance_id = instance_id
        self.epoch = epoch
        self.tier = tier
        self.pairs = StorePairs(segment, tier)
        self._segment = segment
        self._is_draining = is_draining
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def draining(self) -> bool:
        return self._is_draining()

    @property
    def descriptor(self) -> bytes:
        return self._segment.descriptor

    async def hold_pair(self, remote: Remote, terms: PairTerms) -> AsyncGenerator[None, None]:
        """Yields once, when the engine may connect; the pair lives as long as the iteration."""
        pair = await self.pairs.connect(remote, terms)
        try:
            yield
            await pair.wait_broken()
            raise pair.failure()
        finally:
            self.pairs.disconnect(pair, unreachable(f"{remote.instance_id} ended the pair"))

    def acquire(self, incarnation: int, chain: Sequence[Hash], ttl_ms: int) -> Lease:
        """Pins the longest published prefix, for a time."""
        self._expire()
        epoch = self.pairs.epoch_of(incarnation)
        lease = self.tier.acquire(epoch, chain, ttl_ms, self._now_ms())
        self._expire()
        return lease

    def reserve(self, incarnation: int, hashes: Sequence[Hash], ttl_ms: int) -> Lease:
        """Places for absent blocks, for a time."""
        self._expire()
        epoch = self.pairs.epoch_of(incarnation)
        lease = self.tier.reserve(epoch, hashes, ttl_ms, self._now_ms())
        self._expire()
        return lease

    def close(self) -> None:
        """Ends the watch over leases and pairs."""
        if self._timer is not None:
            self._timer.cancel()
        self.pairs.close()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)

    def _expire(self) -> None:
        """Ends what is over, and sets the timer for the next lease that will be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        following_ms = self.tier.expire(self._now_ms())
        if following_ms is not None:
            self._timer = self._loop.call_at(following_ms / 1_000 + 0.001, self._expire)
