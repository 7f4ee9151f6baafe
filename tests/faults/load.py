"""Requests whose right answers are known, and what became of each of them under faults."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import grpc

from crossdock.cli.fleet_plan import FleetOptions, Role
from tests.e2e.caller import REQUEST_TIMEOUT_S, Answer, Caller, sampling
from tests.tiny_models.directory import TinyModel, write_tiny_model

NUM_RUNNING: Final = 16
# Small enough for a fleet to start in a second, large enough for a request to last some of one.
SHAPE: Final = TinyModel(num_layers=4, hidden=128, intermediate=384, num_heads=4, head_dim=32)
# Holds the sequences of NUM_RUNNING requests, but not every prompt of the bank: some are found in
# a cache, some in the kvstore, and some are computed again.
KV_MEMORY: Final = "16MiB"
_TOKENS_A_STEP: Final = 64
NUM_PROMPTS: Final = 64
PROMPT_TOKENS: Final = (64, 500)
GENERATED_TOKENS: Final = (8, 80)

# How a request that was accepted may end where an instance fails under it.
PROPER: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED})


def write_model(directory: Path) -> Path:
    return write_tiny_model(directory, SHAPE)


def options(model: Path, transport: str, num_instances: int = 1) -> FleetOptions:
    """A fleet whose prompts take several steps, and whose every handoff is verified."""
    engine = ["--token-budget", str(_TOKENS_A_STEP), "--verify-handoff"]
    arguments: dict[Role, list[str]] = {
        "prefill": engine,
        "decode": engine,
        # How long a request waits for an instance that is away: until a killed one is back.
        "router": ["--instance-wait", "30"],
    }
    return FleetOptions(
        model,
        num_prefill=num_instances,
        num_decode=num_instances,
        num_threads=1,
        parent_pid=os.getpid(),
        kv_memory=KV_MEMORY,
        transport=transport,
        arguments=arguments,
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt and how many tokens to generate from it."""

    prompt: tuple[int, ...]
    max_tokens: int


class Bank:
    """Prompts with the answers of an undisturbed run: ids, and the bits of every logit."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.asks = [
            Ask(
                tuple(random.randrange(3, 512) for _ in range(random.randint(*PROMPT_TOKENS))),
                random.randint(*GENERATED_TOKENS),
            )
            for _ in range(NUM_PROMPTS)
        ]
        self._right: dict[Ask, object] = {}

    async def learn(self, address: str) -> None:
        """Asks everything of a fleet that nothing disturbs."""
        async with Caller(address) as caller:
            for begin in range(0, NUM_PROMPTS, NUM_RUNNING):  # all at once do not fit its memory
                asks = self.asks[begin : begin + NUM_RUNNING]
                params = [sampling(ask.max_tokens) for ask in asks]
                answers = await caller.generate_all([ask.prompt for ask in asks], params)
                self._right |= {ask: a.same for ask, a in zip(asks, answers, strict=True)}

    def is_right(self, ask: Ask, answer: Answer) -> bool:
        return answer.same == self._right[ask]


@dataclass
class Outcomes:
    """How requests ended, each exactly once; the wrong answers by name."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # What was said to them.
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Outcomes) -> None:
        self.counts += other.counts
        self.refused += other.refused
        self.wrong += other.wrong

    @property
    def num_right(self) -> int:
        return self.counts["right"]

    def unexpected(self, allowed: Sequence[str] = ()) -> list[str]:
        """What may not happen under faults, whatever they were."""
        proper = {"right", *(code.name for code in PROPER), *allowed}
        return self.wrong + [
            f"{n} requests ended {how}" for how, n in self.counts.items() if how not in proper
        ]


async def ask_once(
    caller: Caller,
    bank: Bank,
    ask: Ask,
    outcomes: Outcomes,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """One request to its end. A cancel of the task is the caller going away."""
    try:
        answer = await caller.generate(ask.prompt, sampling(ask.max_tokens), timeout_s=timeout_s)
    except grpc.aio.AioRpcError as error:
        outcomes.counts[error.code().name] += 1
        outcomes.refused[f"{error.code().name}: {error.details()}"] += 1
        if error.code() not in PROPER | {grpc.StatusCode.DEADLINE_EXCEEDED}:
            outcomes.wrong.append(f"{error.code().name}: {error.details()}")
        return
    except asyncio.CancelledError:
        outcomes.counts["cancelled"] += 1
        return
    if bank.is_right(ask, answer):
        outcomes.counts["right"] += 1
    else:
        outcomes.counts["wrong"] += 1
        outcomes.wrong.append(f"wrong tokens for a prompt of {len(ask.prompt)}: {answer.ids}")
