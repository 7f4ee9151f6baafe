"""How tokens are chosen and where a generation ends, as the domain knows it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What the caller asked for. None: absent, takes the default.

    `field_prefix` and `max_tokens_field` are how this caller's API spells the fields, so that an
    error names what the caller wrote.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    field_prefix: str = ""
    max_tokens_field: str = "max_tokens"

    def field(self, name: str) -> str:
        """The caller's name of a field of this message."""
        return self.field_prefix + (self.max_tokens_field if name == "max_tokens" else name)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Complete and validated: every default applied, the seed drawn."""

    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: tuple[int, ...]

    def after(self, num_generated: int) -> Sampling:
        """What is left to sample once `num_generated` tokens are part of the prompt.

        Draws depend on the position in the sequence, so the rest stays as it is.
        """
        assert num_generated < self.max_tokens
        return dataclasses.replace(
            self,
            max_tokens=self.max_tokens - num_generated,
            min_tokens=max(0, self.min_tokens - num_generated),
        )


@dataclass(frozen=True, slots=True)
class StopRules:
    """Ends of a generation that the router decides, not the engine."""

    strings: tuple[str, ...] = ()
    include_in_output: bool = False
