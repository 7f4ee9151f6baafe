"""Types of the simulated world: real engines and the segments of kvstores, in one thread, on
virtual time, from one seed.

The module is built beside the native tests (native/sim). What is real in it: the engine's loop
with its scheduler, pool, prefix tree, handoff table, senders and link. What is simulated: clock,
network, transport, model. Times are nanoseconds of the world's clock, which starts at START_NS.

Everything here runs in the calling thread; nothing happens but inside `World.advance`. Two worlds
of one seed that are told the same things at the same times do the same things: their `digest()`s
are equal.
"""

from typing import Final, Literal, TypeAlias

from crossdock._native import BlockStore, PeerBroken, PeerClosed, PeerReady

START_NS: Final[int]
VOCAB_SIZE: Final[int]
EOS_TOKEN_ID: Final[int]
CONTEXT_TOKENS_MAX: Final[int]
BLOCK_STRIDE_BYTES: Final[int]
"""Of every engine, whatever its KV dtype: kv_memory_bytes is a multiple of it."""
BLOCK_BYTES: Final[dict[str, int]]
"""Of its bytes those that a checksum covers, by KV dtype."""

EngineId: TypeAlias = int
"""Of an engine, or of the process of a kvstore: ids of one kind."""

State: TypeAlias = Literal["running", "stopped", "ended"]
Message: TypeAlias = Literal[
    "any", "open", "grant", "refuse", "revoke", "commit", "ack", "nack", "aborted"
]
Tampering: TypeAlias = Literal[
    "drop", "duplicate", "truncate", "forge", "delay", "incarnation", "attempt", "replay"
]

class Violation:
    """A rule of DESIGN §5 that did not hold."""

    rule: str
    """"block-reuse", "commit-before-bytes", "conservation" or "assert"."""
    engine: EngineId
    at_ns: int
    text: str

class Inspection:
    """An engine from the inside; of one that has ended, its last state."""

    state: State
    exit_code: int | None
    """None while it lives; 0 after Shutdown, 1 after a failure, -9 after a kill."""
    epoch: int
    num_blocks: int
    num_free: int
    num_owned: int
    num_cached: int
    num_quarantined: int
    num_sequences: int
    """Requests that its front has not seen end."""
    num_handoffs: int
    """Live ones on either side, tombstones not counted."""
    num_receiving: int
    """Handoffs that arrive here: until nothing of them is reserved or quarantined."""
    num_sendings: int
    """Handoffs whose writes are not accounted for yet."""
    num_pairs: int
    num_staging_free: int
    num_operations: int
    """One-sided operations of this engine in flight."""
    num_store_blocks_read: int
    num_store_blocks_written: int
    num_store_blocks_bad: int
    """Read from a kvstore, and found not to be what was stored."""
    counters: dict[str, int]
    """Of the handoff table, by name: commits, revokes, refused_mac, ..."""
    table: str
    """HandoffTable.describe(): a line for every pair, record and tombstone."""

class Segment:
    """What a kvstore's process has beside its front: as crossdock._native.Segment."""

    process_id: EngineId
    descriptor: bytes
    event_fd: int
    def connect(self, *, peer_id: int, incarnation: int, descriptor: bytes) -> None: ...
    def disconnect(self, peer_id: int) -> None: ...
    def drain(self) -> list[PeerReady | PeerBroken | PeerClosed]: ...
    def watch(self, index: BlockStore, stride_bytes: int, block_bytes: int) -> None:
        """Shows the checkers the index of its slots, which must live as long as the process."""

class World:
    """Engines, kvstores, the network between them, and what may go wrong."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        """With `trace`, `trace()` tells what happened."""

    now_ns: int
    """Of the world's clock; it moves within `advance` alone."""

    # ---- engines ---------------------------------------------------------------------------------
    def add_engine(
        self,
        *,
        config_json: str,
        memory_fd: int,
        to_engine_fd: int,
        to_front_fd: int,
        host: str,
        token_ns: int = 20_000,
        step_ns: int = 200_000,
    ) -> EngineId:
        """Starts an engine on the link of a `crossdock._native.EngineLink`, which must outlive it.

        `config_json` is what crossdock-engine takes; `model_directory` names a model (equal names:
        one model), `kv_memory_bytes`, `kv_dtype`, `transport`, `token_budget`, ... mean what they
        mean there. Engines of one `host` share memory where `transport` allows it. A step takes
        `step_ns` and `token_ns` for each of its tokens, in equal parts after every layer. Raises
        ValueError for a bad configuration. Ids count up from 0 and are never reused; a restart is
        another engine.
        """

    def add_store(
        self, *, host: str, transport: str, epoch: int, segment_bytes: int
    ) -> Segment: ...
    def corrupt(self, store: EngineId) -> bool:
        """Flips a bit of a block that this kvstore has. False while it has none."""
    def kill(self, process: EngineId) -> None:
        """SIGKILL, wherever it is. Idempotent."""
    def kill_at_operation(self, engine: EngineId, count: int) -> None:
        """SIGKILL when it posts its count-th operation (messages too) from now, in mid-turn."""
    def stop(self, process: EngineId) -> None:
        """SIGSTOP: the loop and the transfer thread stand still."""
    def resume(self, process: EngineId) -> None:
        """SIGCONT."""
    def set_pace(self, engine: EngineId, *, token_ns: int, step_ns: int) -> None:
        """From its next step on."""
    def inspect(self, engine: EngineId) -> Inspection: ...
    def ended(self) -> list[EngineId]:
        """Engines that ended since the last call; `inspect` has the exit code."""

    # ---- time ------------------------------------------------------------------------------------
    def next_ns(self) -> int | None:
        """When something will happen next by itself: now_ns if an engine has something to do at
        once (a command in its link, say), None if nothing ever will."""
    def advance(self, until_ns: int) -> bool:
        """Runs what is due, in order, until `until_ns`. Returns True, and early, as soon as a front
        has something to read (its to_front_fd or event_fd is readable) or an engine has ended;
        False when now_ns is until_ns. Call it again after a True: what is due at now_ns goes on."""

    # ---- network: names are engine ids, or hosts -------------------------------------------------
    def set_network(
        self,
        *,
        delay_min_ns: int | None = None,
        delay_max_ns: int | None = None,
        bytes_per_s: int | None = None,
        lost_completions: float | None = None,
        write_chunk_bytes: int | None = None,
    ) -> None:
        """Of every path: a message or write takes a delay drawn from the range, a few up to fifty
        times longer, and its bytes at this speed; this share of one-sided operations never
        reports its completion, and then its pair breaks later. One write lands in pieces of
        `write_chunk_bytes`. None: as it was."""
    def set_path(
        self,
        source: EngineId,
        target: EngineId,
        *,
        delay_min_ns: int | None = None,
        delay_max_ns: int | None = None,
        bytes_per_s: int | None = None,
    ) -> None:
        """The same for one direction between two engines."""
    def partition(self, a: EngineId, b: EngineId) -> None:
        """Nothing passes between them, both ways; connections break when they notice. Engines of
        one host that share memory go on reading and writing it."""
    def heal(self, a: EngineId, b: EngineId) -> None: ...
    def break_pair(self, a: EngineId, b: EngineId) -> None:
        """Fails every connection between them, noticed by each side on its own."""
    def fail_posts(self, engine: EngineId, count: int) -> None:
        """Its next `count` reads and writes cannot be posted: each ends in an error at once."""
    def lose_completion(self, engine: EngineId, count: int = 1) -> None:
        """The next completions of one-sided operations of this engine never come; the pair breaks
        after a while, as a transport that retries and gives up has it."""

    # ---- hostile or broken peers -----------------------------------------------------------------
    def tamper(
        self, source: EngineId, how: Tampering, *, message: Message = "any", count: int = 1
    ) -> None:
        """The next `count` messages of that kind that `source` sends are dropped, sent twice, cut
        short, held back for long (delay; later ones wait behind), given another incarnation or
        attempt under the seal that they had, or sent once more much later, even on a later
        connection of the two (replay). With `forge`, as many of that kind come that `source` never
        sent, made without the pair's key, each behind a message of its own about the same
        handoff."""

    def disarm(self) -> None:
        """What was prepared and has not happened never will: kills at an operation, posts to fail,
        completions to lose, messages to tamper with. No completion is lost by chance any more."""

    # ---- what checkers ask -----------------------------------------------------------------------
    def violations(self) -> list[Violation]:
        """Since the beginning, oldest first."""
    def check(self) -> None:
        """Conservation in every engine and kvstore now: pool, tree, scheduler, index; it is also
        looked at after every step. Every stored block has the bytes of its checksum; of new ones
        this is looked at as they are published. A fault is a violation."""
    def sabotage(self, rule: str) -> None:
        """Has the transport break one of its promises from now on, so that a checker must fire:
        "fence-proves-nothing" or "closing-proves-nothing"."""
    def digest(self) -> str:
        """Of everything that has happened, 32 hexadecimal digits."""
    def trace(self) -> list[str]:
        """What happened, a line an event, oldest first; bounded to the last 100,000."""
    def statistics(self) -> dict[str, int]:
        """Counts over the world: turns, layers, computed_tokens, messages, messages_tampered,
        operations, posts_failed, completions_lost, pieces_landed, bytes_landed, landed_late (their
        sender had died), landed_quarantined (in blocks that were given up), pieces_dropped,
        blocks_corrupted, pairs_ready, pairs_broken."""

def oracle(
    prompt: list[int],
    max_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    choice: int = 0,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: list[int] = ...,
    model: str = "sim",
) -> list[int]:
    """The tokens that any topology must give for this prompt, a final stop token among them."""
