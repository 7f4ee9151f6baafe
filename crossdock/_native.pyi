"""Types of the native module: plain data of the engine link, the link itself, the executor."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

class Finish(IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2

class Sampling:
    temperature: float
    top_k: int
    top_p: float
    seed: int
    choice: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: list[int]
    def __init__(
        self,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        choice: int = 0,
        max_tokens: int = 0,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        stop_token_ids: list[int] = ...,
    ) -> None: ...

class StoredBlock:
    hash_low: int
    hash_high: int
    offset_bytes: int
    generation: int
    checksum_low: int
    checksum_high: int
    def __init__(
        self,
        *,
        hash_low: int,
        hash_high: int,
        offset_bytes: int = 0,
        generation: int = 0,
        checksum_low: int = 0,
        checksum_high: int = 0,
    ) -> None: ...

class Task:
    sequence_id: int
    prompt: list[int]
    num_generated_tokens: int
    sampling: Sampling
    tenant_salt: bytes
    wants_digests: bool
    def __init__(
        self,
        *,
        sequence_id: int,
        prompt: list[int],
        num_generated_tokens: int = 0,
        sampling: Sampling,
        tenant_salt: bytes = b"",
        wants_digests: bool = False,
    ) -> None: ...

class Generate:
    def __init__(self, *, task: Task) -> None: ...

class Expect:
    def __init__(
        self, *, task: Task, handoff_high: int, handoff_low: int, attempt: int, source_epoch: int
    ) -> None: ...

class Prefill:
    def __init__(
        self, *, task: Task, handoff_high: int, handoff_low: int, attempt: int, peer_id: int
    ) -> None: ...

class Cancel:
    def __init__(self, *, sequence_id: int) -> None: ...

class ConnectPeer:
    def __init__(
        self,
        *,
        peer_id: int,
        epoch: int,
        incarnation: int,
        mac_key: bytes,
        descriptor: bytes,
        layout: bytes,
        store: bool = False,
    ) -> None: ...

class DisconnectPeer:
    def __init__(self, *, peer_id: int) -> None: ...

class PeerLost:
    def __init__(self, *, epoch: int) -> None: ...

class StoreFound:
    def __init__(
        self, *, sequence_id: int, peer_id: int, lease_id: int, blocks: list[StoredBlock]
    ) -> None: ...

class StorePlaces:
    def __init__(
        self, *, offer_id: int, peer_id: int, lease_id: int, blocks: list[StoredBlock]
    ) -> None: ...

class QueryStatus:
    def __init__(self) -> None: ...

class Shutdown:
    def __init__(self) -> None: ...

Command = (
    Generate
    | Expect
    | Prefill
    | Cancel
    | ConnectPeer
    | DisconnectPeer
    | PeerLost
    | StoreFound
    | StorePlaces
    | QueryStatus
    | Shutdown
)

class Ready:
    epoch: int
    descriptor: bytes
    layout: bytes
    layout_text: str
    numerics_id: str
    num_blocks: int
    block_stride_bytes: int
    context_tokens_max: int
    vocab_size: int
    eos_token_ids: list[int]

class StartFailed:
    code: int
    message: str

class SequenceToken:
    sequence_id: int
    token: int
    position: int
    digest_low: int
    digest_high: int
    finish: Finish

class Tokens:
    tokens: list[SequenceToken]

class Started:
    sequence_id: int
    num_cached_tokens: int
    queue_ns: int
    prefill_ns: int

class HandoffDone:
    sequence_id: int
    first_token: int
    position: int
    digest_low: int
    digest_high: int
    num_cached_tokens: int
    queue_ns: int
    prefill_ns: int
    handoff_ns: int
    handoff_bytes: int
    num_transfers: int
    transfer_ns: int

class Ended:
    sequence_id: int
    code: int
    message: str

class PeerConnected:
    peer_id: int
    transport: str
    not_shared: str  # why data does not go through shared memory; empty: it does
    staged: str  # why data is copied through UCX's buffers; empty: no segment needs that

class PeerDown:
    peer_id: int
    closed: bool
    code: int
    message: str

class StoreLookup:
    sequence_id: int
    chain: list[int]

class StoreReadDone:
    lease_id: int
    bad: list[int]

class StoreOffer:
    offer_id: int
    hashes: list[int]

class StoreWritten:
    lease_id: int
    blocks: list[StoredBlock]

class NamedCount:
    name: str
    value: int

class PairReport:
    peer_id: int
    counters: list[NamedCount]  # named like the fields of PeerStatus

class StatusReport:
    num_blocks: int
    num_free: int
    num_owned: int
    num_cached: int
    num_quarantined: int
    quarantined_blocks_max: int  # above it nothing is reserved
    num_running: int
    num_waiting: int
    num_handoffs: int
    num_steps: int
    queued_tokens: int
    counters: list[NamedCount]
    pairs: list[PairReport]

_SequenceEvent = Tokens | Started | HandoffDone | Ended
_StoreEvent = StoreLookup | StoreReadDone | StoreOffer | StoreWritten
Event = Ready | StartFailed | _SequenceEvent | _StoreEvent | PeerConnected | PeerDown | StatusReport

class EngineLink:
    """The front's end of the rings. One thread's. The engine inherits the fds. Or StatusError."""

    def __init__(self, ring_bytes: int = 4 << 20) -> None: ...
    memory_fd: int
    to_engine_fd: int
    """Eventfd that wakes the engine."""
    to_front_fd: int
    """Eventfd that wakes the front: add it to the event loop as a reader."""
    def send(self, command: Command) -> bool:
        """False when the ring is full now. ValueError when the record can never fit."""
    def receive(self) -> list[Event]:
        """All events there are; leaves the wake-up armed, so the fd becomes readable again."""
    def progress(self) -> tuple[int, bool]:
        """The engine's progress counter, and whether it is inside a step."""

class StatusError(Exception):
    """An operating error of the core: args are the code (as gRPC's) and the message."""

    args: tuple[int, str]

class PeerReady:
    peer_id: int
    transport: str
    not_shared: str
    staged: str

class PeerBroken:
    peer_id: int
    code: int
    message: str
    process_gone: bool

class PeerClosed:
    peer_id: int
    writes_stopped: bool

class Segment:
    """A registered arena and its peers, for a process without an engine. Used by one thread."""

    def __init__(
        self,
        *,
        transport: str,
        segment_bytes: int,
        epoch: int,
        huge_pages: bool = False,
        bind_interface: str = "",
        rdma_port: tuple[str, str] = ("", "auto"),  # device and GID index
    ) -> None: ...
    descriptor: bytes
    staged: str  # why the segment could not be shared or registered; empty: it was
    event_fd: int  # readable while drain has something to return
    def connect(self, *, peer_id: int, incarnation: int, descriptor: bytes) -> None: ...
    def disconnect(self, peer_id: int) -> None: ...
    def drain(self) -> list[PeerReady | PeerBroken | PeerClosed]: ...

class SlotBlock:
    hash_low: int
    hash_high: int
    slot: int
    generation: int
    checksum_low: int
    checksum_high: int

class BlockLease:
    lease_id: int
    blocks: list[SlotBlock]

class BlockStoreStatistics:
    num_free: int
    num_writing: int
    num_published: int
    num_pinned: int
    num_retired: int
    num_quarantined: int
    num_leases: int
    hit_blocks: int
    miss_blocks: int
    reserved_blocks: int
    published_blocks: int
    abandoned_blocks: int
    evicted_blocks: int
    dropped_blocks: int
    stale_drops: int
    expired_leases: int
    refused_reservations: int

class BlockStore:
    """The index of the DRAM tier. Chains are flat: low, high, low, high, ... Used by one thread."""

    def __init__(self, *, num_blocks: int) -> None: ...
    def match(self, chain: list[int]) -> int: ...
    def acquire(
        self, chain: list[int], *, owner_epoch: int, ttl_ticks: int, tick: int
    ) -> BlockLease: ...
    def reserve(
        self, hashes: list[int], *, owner_epoch: int, ttl_ticks: int, tick: int
    ) -> BlockLease: ...
    def commit(self, lease_id: int, publications: list[int]) -> int:
        """Publications are flat: low and high of the hash, low and high of the checksum, ..."""
    def release(self, lease_id: int) -> bool: ...
    def expire(self, tick: int) -> None: ...
    def next_tick(self) -> int: ...
    def revoke_owner(self, owner_epoch: int) -> None: ...
    def owner_gone(self, owner_epoch: int) -> None: ...
    def drop(self, hash_low: int, hash_high: int, generation: int) -> bool: ...
    def statistics(self) -> BlockStoreStatistics: ...

# Tokens, position of the first, block table, whether the last token's logits are wanted.
_Item = tuple[Sequence[int], int, Sequence[int], bool]

class Executor:
    """The model on a slab of its own. Used by one thread; the GIL is released while it computes."""

    @staticmethod
    def load(
        model_directory: str,
        *,
        num_blocks: int,
        weight_dtype: str = "auto",
        kv_dtype: str = "f32",
        mla_prefill: str = "absorbed",
        num_threads: int = 1,
        kernels: str = "auto",
        cache_directory: str = "",
    ) -> Executor:
        """Raises StatusError where the model cannot be loaded."""
    numerics_id: str
    layout_text: str
    eos_token_ids: list[int]
    slab: npt.NDArray[np.uint8]  # [block][byte], the executor's own memory
    def run(self, items: Sequence[_Item], *, first_generated: int = ...) -> npt.NDArray[np.float32]:
        """The logits that items want, as rows. Positions from first_generated on are generated."""
    def zero_tail(self, block_id: int, num_used_slots: int) -> None: ...
    def convert_block(self, source: Executor, from_block_id: int, to_block_id: int) -> None:
        """A block of the source's slab, in this one's KV dtype. The models must be equal."""

class WeightReport:
    """What a dtype makes of a checkpoint's weights; a tied head counts once, as the embedding."""

    dtype: str  # as served; never auto
    num_weights: int
    num_exact: int  # equal to the checkpoint's to the bit
    memory_bytes: int
    file: str  # where they are kept for the next start; empty: nowhere

def report_weights(
    model_directory: str,
    *,
    weight_dtype: str = "auto",
    cache_directory: str = "",
    num_threads: int = 1,
) -> WeightReport:
    """Loads the weights, from the cache where they are kept, and compares them."""
