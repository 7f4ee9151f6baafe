"""What the router asks of prefill and decode instances, and what they answer.

Plain values and one Protocol: the gRPC client implements it, and tests bring their own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Protocol

from services.router.sampling import Sampling

# The reason of an instance's own answer that it cannot reach the other one of the attempt. It is
# told apart from Reason.UNREACHABLE, which means that we could not reach the instance.
PAIR_BROKEN: Final = "PAIR_BROKEN"


class Role(StrEnum):
    """What an instance does, spelled as in InstanceStatus.role."""

    PREFILL = "prefill"
    DECODE = "decode"


class EngineFinish(Enum):
    """Why an engine ended a sequence."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """The parts of InstanceStatus that the router decides by."""

    instance_id: str
    role: str
    epoch: int
    model: str
    ready: bool
    draining: bool
    pool_tokens: int
    queued_tokens: int
    context_tokens_max: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """An instance at one epoch, addressed directly."""

    instance_id: str
    address: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `position` counts in the sequence, prompt included."""

    token_id: int
    position: int
    logit_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class AttemptOrder:
    """One attempt as both workers are told it. Without `prefill` the decode instance does both."""

    request_id: str
    handoff_id: bytes
    attempt: int
    token_ids: tuple[int, ...]
    num_generated_tokens: int  # the last of token_ids, in a replay
    sampling: Sampling
    return_logit_digests: bool
    prefill: Target | None
    decode: Target


@dataclass(frozen=True, slots=True)
class PromptWork:
    """What an instance did for a prompt; of a handoff, only its sender knows."""

    cached_prompt_tokens: int = 0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    handoff_ms: float = 0.0
    handoff_bytes: int = 0
    handoff_transfers: int = 0
    handoff_transfer_ms: float = 0.0
    transport: str = ""


@dataclass(frozen=True, slots=True)
class DecodeUpdate:
    """One message of the decode stream; `work` comes with the last only."""

    tokens: tuple[Token, ...]
    finish: EngineFinish | None = None
    work: PromptWork = PromptWork()


@dataclass(frozen=True, slots=True)
class PrefillReply:
    """A prefill whose handoff the decode instance acknowledged."""

    first_token: Token
    work: PromptWork


class Workers(Protocol):
    """Calls to instances. Every failure is a CrossdockError. Cancelling a call ends it."""

    async def prefill(self, order: AttemptOrder, timeout_s: float | None) -> PrefillReply:
        """Returns once the handoff is acknowledged."""
        ...

    def generate(
        self, order: AttemptOrder, timeout_s: float | None
    ) -> AsyncGenerator[DecodeUpdate, None]:
        """The decode stream. Closing it ends the lease, and returns once the call is over."""
        ...

    async def report(self, role: Role, address: str, timeout_s: float) -> InstanceReport:
        """The instance's own status."""
        ...
