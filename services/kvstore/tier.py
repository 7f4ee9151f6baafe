"""The DRAM tier: which blocks lie where in the slab, on leases of connected engines.

The native index decides everything about slots; this adds what the index does not know: the size of
a slot, which engines are connected, and which generation a reader of a lease means when it calls a
block bad. The clock is an argument, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from crossdock import _native as native
from crossdock.errors import (
    Code,
    CrossdockError,
    Reason,
    layout_mismatch,
    not_found,
    overloaded,
    stale_epoch,
)

# (low, high) of a 128-bit hash.
Hash = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """A block in the slab. The checksum is zero in a reservation."""

    hash: Hash
    offset_bytes: int
    generation: int
    checksum: Hash


@dataclass(frozen=True)
class Lease:
    """What an engine holds; `lease_id` 0: nothing."""

    lease_id: int
    places: tuple[Place, ...]


@dataclass
class _ReadLease:
    """What a reader may report about, until a while after the lease expired."""

    deadline_ms: int
    generations: dict[Hash, int]


class Tier:
    """Used on one event loop. `memory_bytes` is divided into slots of the first engine's size.

    `epoch` is the store's: lease ids begin there, so that one of a store that is gone never names a
    lease of its successor.
    """

    def __init__(self, memory_bytes: int, epoch: int) -> None:
        self._memory_bytes = memory_bytes
        self._first_lease_id = epoch >> 1  # leaves room to count up
        self._stride_bytes = 0
        self._index: native.BlockStore | None = None
        self._owners: set[int] = set()
        self._reads: dict[int, _ReadLease] = {}

    @property
    def num_slots(self) -> int:
        return self._memory_bytes // self._stride_bytes if self._stride_bytes else 0

    def check(self, stride_bytes: int, who: str) -> None:
        """Raises when the blocks of an engine that wants to connect do not fit the slots."""
        if stride_bytes <= 0:
            raise layout_mismatch(f"{who} does not tell its block stride")
        if self._index is None and stride_bytes > self._memory_bytes:
            raise layout_mismatch(
                f"a block of {who} has {stride_bytes} bytes, the store's memory "
                f"{self._memory_bytes}; give the kvstore more with --memory"
            )
        if self._index is not None and stride_bytes != self._stride_bytes:
            raise layout_mismatch(
                f"block strides differ: the store keeps blocks of {self._stride_bytes} bytes, "
                f"{who} has blocks of {stride_bytes}; use a kvstore of its own for it"
            )

    def admit(self, owner_epoch: int, stride_bytes: int, who: str) -> None:
        """An engine connects; the first one decides the size of the slots. Raises as `check`."""
        self.check(stride_bytes, who)
        if self._index is None:
            self._stride_bytes = stride_bytes
            self._index = native.BlockStore(num_blocks=self._memory_bytes // stride_bytes)
        self._owners.add(owner_epoch)

    def part(self, owner_epoch: int) -> None:
        """An engine's pair broke: reads end, reservations are quarantined."""
        if owner_epoch in self._owners:
            self._owners.discard(owner_epoch)
            self._require_index().revoke_owner(owner_epoch)

    def prove_silent(self, owner_epoch: int) -> None:
        """No write of that engine can land any more: its quarantine ends."""
        if self._index is not None:
            self._index.owner_gone(owner_epoch)

    def match(self, chain: Sequence[Hash]) -> int:
        """Blocks of the longest published prefix. Pins nothing."""
        return self._index.match(_flat(chain)) if self._index is not None else 0

    def acquire(self, owner_epoch: int, chain: Sequence[Hash], ttl_ms: int, now_ms: int) -> Lease:
        """Pins the longest published prefix."""
        self._check_owner(owner_epoch)
        with _statuses():
            granted = self._require_index().acquire(
                _flat(chain), owner_epoch=owner_epoch, ttl_ticks=ttl_ms, tick=now_ms
            )
        lease = self._lease_of(granted)
        if lease.lease_id:
            generations = {place.hash: place.generation for place in lease.places}
            # Twice the time: the report of a read that ended just in time may come after it.
            self._reads[lease.lease_id] = _ReadLease(now_ms + 2 * ttl_ms, generations)
        return lease

    def reserve(self, owner_epoch: int, hashes: Sequence[Hash], ttl_ms: int, now_ms: int) -> Lease:
        """Places for those blocks that are absent, as far as there is room."""
        self._check_owner(owner_epoch)
        with _statuses():
            granted = self._require_index().reserve(
                _flat(hashes), owner_epoch=owner_epoch, ttl_ticks=ttl_ms, tick=now_ms
            )
        return self._lease_of(granted)

    def commit(self, lease_id: int, blocks: Sequence[tuple[Hash, Hash]]) -> int:
        """Publishes blocks of a reservation, each with the checksum of its bytes."""
        words = [word for hash_, checksum in blocks for word in (*hash_, *checksum)]
        if self._index is None:
            raise not_found(f"lease {lease_id} is unknown")
        with _statuses():
            return self._index.commit(self._inner_id(lease_id), words)

    def release(self, lease_id: int, bad: Sequence[Hash]) -> None:
        """Ends a lease, after dropping what its reader found not to match. A lease that expired
        is released already; its reader's report still counts.
        """
        if self._index is None:
            return
        read = self._reads.pop(lease_id, None)
        generations = read.generations if read is not None else {}
        for hash_ in bad:
            if hash_ in generations:
                self._index.drop(*hash_, generations[hash_])
        self._index.release(self._inner_id(lease_id))

    def expire(self, now_ms: int) -> int | None:
        """Ends what is over; returns when the next lease is, in milliseconds."""
        if self._index is None:
            return None
        self._index.expire(now_ms)
        for lease_id in [i for i, read in self._reads.items() if read.deadline_ms <= now_ms]:
            del self._reads[lease_id]
        following = min(
            (self._index.next_tick(), *(read.deadline_ms for read in self._reads.values()))
        )
        return following if following < 1 << 63 else None

    def statistics(self) -> native.BlockStoreStatistics | None:
        """None before the first engine connected."""
        return self._index.statistics() if self._index is not None else None

    def _check_owner(self, owner_epoch: int) -> None:
        if owner_epoch not in self._owners:
            raise stale_epoch(
                f"no engine of epoch {owner_epoch:016x} is connected; call Connect first"
            )

    def _require_index(self) -> native.BlockStore:
        assert self._index is not None, "an owner is connected, so the index exists"
        return self._index

    def _inner_id(self, lease_id: int) -> int:
        return max(0, lease_id - self._first_lease_id)  # 0: of no lease

    def _lease_of(self, granted: native.BlockLease) -> Lease:
        lease_id = granted.lease_id + self._first_lease_id if granted.lease_id else 0
        return Lease(
            lease_id,
            tuple(
                Place(
                    (block.hash_low, block.hash_high),
                    block.slot * self._stride_bytes,
                    block.generation,
                    (block.checksum_low, block.checksum_high),
                )
                for block in granted.blocks
            ),
        )


def _flat(hashes: Sequence[Hash]) -> list[int]:
    return [word for hash_ in hashes for word in hash_]


@contextmanager
def _statuses() -> Iterator[None]:
    """Turns the core's StatusError into the error of the services."""
    try:
        yield
    except native.StatusError as error:
        code, message = error.args
        if code == Code.RESOURCE_EXHAUSTED:
            raise overloaded(message) from error
        if code == Code.NOT_FOUND:
            raise not_found(message) from error
        raise CrossdockError(Code(code), message, Reason.INVALID_FIELD) from error
