"""What one seed stands for: the fleet, the callers and the faults, drawn before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from tests.sim.engines import Pace

BLOCK_TOKENS: Final = 32
_STORE_SHARE: Final = 0.5
# Ids above the special ones and the end of sequence; few, so that prompts share beginnings.
_FIRST_TOKEN: Final = 8

FAULTS: Final = (
    "kill-front",
    "kill-engine",
    "kill-engine-in-operation",
    "kill-router",
    "kill-caller",
    "stop-front",
    "stop-engine",
    "stop-both",
    "stop-router",
    "terminate",
    "terminate-router",
    "partition",
    "reset",
    "slow-network",
    "slow-path",
    "kill-on-slow-paths",
    "break-pair",
    "fail-posts",
    "lose-completions",
    "tamper",
    "slow-engine",
)
# What may befall a kvstore, and what may befall an engine that reads and writes it.
_STORE_FAULTS: Final = (
    *("kill-front", "stop-front", "terminate", "partition", "reset", "break-pair", "corrupt-store"),
)
_STORE_USER_FAULTS: Final = (
    *("slow-path", "kill-on-slow-paths", "kill-front", "stop-engine", "stop-both"),
    *("fail-posts", "lose-completions", "kill-engine", "terminate", "orphan-stopped"),
)
_TAMPERINGS: Final = (
    *("drop", "duplicate", "truncate", "forge", "delay", "incarnation", "attempt", "replay"),
)
_MESSAGES: Final = (
    *("any", "open", "grant", "refuse", "revoke", "commit", "ack", "nack", "aborted"),
)


@dataclass(frozen=True)
class Fault:
    """`target` and `other` are names of services; which of them a kind uses is in faults.py."""

    at_s: float
    kind: str
    target: str
    other: str
    lasts_s: float
    count: int
    how: str
    message: str


@dataclass(frozen=True)
class Ask:
    """One request of one caller."""

    request_id: str
    at_s: float
    tenant: int
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]
    timeout_s: float | None
    cancel_after_s: float | None
    abort_after_s: float | None
    read_pause_s: float


@dataclass(frozen=True)
class Instance:
    """One prefill or decode instance."""

    name: str
    role: str
    host: str
    renamed: bool
    num_blocks: int
    pace: Pace
    config: dict[str, object]


@dataclass(frozen=True)
class StoreInstance:
    """The kvstore. `lease_ms`: what its clients ask for; None is what they do by themselves."""

    name: str
    host: str
    renamed: bool
    num_blocks: int
    transport: str
    lease_ms: int | None


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides beforehand."""

    seed: int
    num_tenants: int
    instances: tuple[Instance, ...]
    asks: tuple[Ask, ...]
    faults: tuple[Fault, ...]
    delay_max_s: float
    bytes_per_s: int
    lost_completions: float
    write_chunk_bytes: int
    sabotage: str = ""
    names: tuple[str, ...] = field(default=())
    store: StoreInstance | None = None


def draw(seed: int, *, faults: bool = True, sabotage: str = "") -> Scenario:
    random = Random(f"scenario {seed}")
    instances = _instances(random)
    num_tenants = random.choice((1, 1, 2))
    names = tuple(instance.name for instance in instances)
    spread_s = random.choice((0.5, 3.0, 10.0))
    asks = _asks(random, instances, num_tenants, spread_s)
    hostile = random.random() < 0.9
    scenario = Scenario(
        seed=seed,
        num_tenants=num_tenants,
        instances=instances,
        asks=asks,
        faults=_faults(random, names, num_tenants, spread_s) if faults and hostile else (),
        delay_max_s=random.choice((0.000_2, 0.001, 0.02)),
        bytes_per_s=random.choice((10**9, 10**8, 10**7)),
        lost_completions=random.choice((0.0, 0.0, 0.02)) if faults and hostile else 0.0,
        write_chunk_bytes=random.choice((256, 1_024, 65_536)),
        sabotage=sabotage,
        names=names,
    )
    # Chance of its own, so that what a seed is besides does not hang on it.
    random = Random(f"store {seed}")
    return with_store(scenario, random) if random.random() < _STORE_SHARE else scenario


def with_store(scenario: Scenario, random: Random) -> Scenario:
    """The same fleet with a kvstore, which is in for faults where the fleet is."""
    prefill = [instance for instance in scenario.instances if instance.role == "prefill"]
    if not prefill:
        return scenario
    hostile = bool(scenario.faults)
    own_host = prefill[0].host if prefill[0].host == "shared" else "host-kvstore"
    transport = random.choice((str(prefill[0].config["transport"]),) * 4 + ("rc",))
    store = StoreInstance(
        name="kvstore",
        host=random.choice((own_host, prefill[0].host)),
        renamed=random.random() < 0.5,
        num_blocks=random.choice((4, 12, 64, 256)),
        transport=transport,
        lease_ms=random.choice((None, None, 2, 50, 1_000)),
    )
    # Half of them are about the store alone, over paths on which most of a transfer is under way.
    focused = random.random() < 0.5
    if hostile and focused:
        scenario = replace(scenario, faults=(), bytes_per_s=200_000)
    faults: list[Fault] = []
    if hostile:
        kinds = random.sample(
            _STORE_FAULTS + _STORE_USER_FAULTS, random.randint(1, 2 if focused else 4)
        )
        faults = [
            Fault(
                # While what was asked is looked up, computed and written.
                at_s=random.choice(scenario.asks).at_s + random.uniform(0.0, 0.3),
                kind=(kind := random.choice(kinds)),
                target=store.name if kind in _STORE_FAULTS else random.choice(prefill).name,
                other=random.choice(prefill).name if kind in _STORE_FAULTS else store.name,
                lasts_s=random.choice((0.01, 0.3, 2.5, 12.0, 40.0)),
                count=random.randint(1, 8),
                how="",
                message="",
            )
            for _ in range(random.randint(1, 16))
        ]
    instances = tuple(
        replace(
            instance,
            config=instance.config | {"transport": transport, "store": instance.role == "prefill"},
        )
        for instance in scenario.instances
    )
    asks = _asked_again(random, scenario)
    both = sorted((*scenario.faults, *faults), key=lambda fault: fault.at_s)
    return replace(scenario, store=store, instances=instances, asks=asks, faults=tuple(both))


def _asked_again(random: Random, scenario: Scenario) -> tuple[Ask, ...]:
    """Some prompts more often, so that what one instance stored is asked of another."""
    room_tokens = min(instance.num_blocks for instance in scenario.instances) * BLOCK_TOKENS
    asks = list(scenario.asks)
    for index in range(1, len(asks)):
        prompt = random.choice(asks[:index]).prompt
        if random.random() < 0.4 and len(prompt) + asks[index].max_tokens <= room_tokens:
            asks[index] = replace(asks[index], prompt=prompt)
    return tuple(asks)


def _instances(random: Random) -> tuple[Instance, ...]:
    num_prefill = random.choice((0, 1, 1, 2, 2, 3))
    num_decode = random.choice((1, 1, 2, 3))
    one_host = random.random() < 0.5
    transport = random.choice(("auto", "auto", "tcp"))
    verify = random.random() < 0.5
    dtypes = random.choice((("f32", "f32"), ("f32", "f32"), ("bf16", "bf16"), ("f32", "bf16")))
    budget = random.choice((32, 64, 256, 2_048))
    instances = []
    for role, count in (("prefill", num_prefill), ("decode", num_decode)):
        for index in range(count):
            name = f"{role}{index}"
            instances.append(
                Instance(
                    name=name,
                    role=role,
                    host="shared" if one_host else f"host-{name}",
                    renamed=random.random() < 0.5,
                    num_blocks=random.choice((12, 16, 24, 64)),
                    pace=_pace(random),
                    config={
                        "transport": transport,
                        "verify_handoff": verify,
                        "kv_dtype": dtypes[0] if role == "prefill" else dtypes[1],
                        "token_budget": budget,
                        "num_sequences_max": random.choice((4, 16, 256)),
                    },
                )
            )
    return tuple(instances)


def _pace(random: Random) -> Pace:
    return Pace(
        start_max_s=random.choice((0.05, 1.0, 3.0)),
        token_ns=random.choice((2_000, 20_000, 200_000)),
        step_ns=random.choice((100_000, 1_000_000, 10_000_000)),
    )


def _asks(
    random: Random, instances: tuple[Instance, ...], num_tenants: int, spread_s: float
) -> tuple[Ask, ...]:
    # Every request fits every pool, so that none is refused for good.
    room_tokens = min(instance.num_blocks for instance in instances) * BLOCK_TOKENS
    documents = [_tokens(random, random.randint(1, room_tokens // 2)) for _ in range(3)]
    asks: list[Ask] = []
    for index in range(random.randint(4, 20)):
        prompt = _prompt(random, documents, asks, room_tokens)
        most = min(40, room_tokens - len(prompt))
        max_tokens = random.randint(1, most)
        sampled = random.random() < 0.4
        asks.append(
            Ask(
                request_id=f"r{index}",
                at_s=random.uniform(0, spread_s),
                tenant=random.randrange(num_tenants),
                prompt=prompt,
                max_tokens=max_tokens,
                temperature=random.choice((0.5, 1.0)) if sampled else 0.0,
                top_k=random.choice((0, 5)) if sampled else 0,
                top_p=random.choice((1.0, 0.9)) if sampled else 1.0,
                seed=random.getrandbits(32),
                min_tokens=random.choice((0, 0, max_tokens // 2)),
                ignore_eos=random.random() < 0.2,
                stop_token_ids=(random.randint(_FIRST_TOKEN, 60),) if random.random() < 0.2 else (),
                timeout_s=_sometimes(random, 0.2, 0.01, 20.0),
                cancel_after_s=_sometimes(random, 0.15, 0.0, 1.0),
                abort_after_s=_sometimes(random, 0.1, 0.0, 1.0),
                read_pause_s=random.choice((0.0, 0.0, 0.0, 0.05, 0.5)),
            )
        )
    return tuple(asks)


def _prompt(
    random: Random, documents: list[tuple[int, ...]], asks: list[Ask], room_tokens: int
) -> tuple[int, ...]:
    """Often the beginning of another's, so that blocks are found and shared."""
    beginnings = [*documents, *(ask.prompt for ask in asks), ()]
    beginning = random.choice(beginnings)
    kept = beginning[: random.choice((len(beginning), random.randint(0, len(beginning))))]
    prompt = kept + _tokens(random, random.randint(1, 40))
    return prompt[: room_tokens - 8]


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    return tuple(random.randint(_FIRST_TOKEN, 60) for _ in range(count))


def _sometimes(random: Random, share: float, low: float, high: float) -> float | None:
    drawn = random.uniform(low, high)
    return drawn if random.random() < share else None


def _faults(
    random: Random, names: tuple[str, ...], num_tenants: int, spread_s: float
) -> tuple[Fault, ...]:
    routers = [f"router{index}" for index in range(num_tenants)]
    # A seed keeps to a few kinds, so that rare meetings of two of them are seen, too.
    kinds = random.sample(FAULTS, random.randint(1, 5))
    faults = [
        Fault(
            at_s=random.uniform(0, spread_s + 1),
            kind=(kind := random.choice(kinds)),
            target=random.choice(routers if kind.endswith("router") else names),
            other=random.choice(names),
            lasts_s=random.choice((0.01, 0.3, 2.0, 12.0, 40.0)),
            count=random.randint(1, 8),
            how=random.choice(_TAMPERINGS),
            message=random.choice(_MESSAGES),
        )
        for _ in range(random.randint(1, 12))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
