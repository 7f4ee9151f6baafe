"""From generated tokens to what a caller receives: text, stop strings, and coalescing.

`TextAssembler` turns tokens into pieces of text that will not change any more. `Outbox` holds what
the reader did not take yet: when the reader is slow, pieces become one, so that what waits is
bounded by the request's own max_tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from crossdock.errors import CrossdockError
from crossdock.tokenization import Detokenizer, StopMatcher
from services.router.worker import PromptWork, Token


class FinishReason(Enum):
    """Why a request ended, as callers are told."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went; units are in the names."""

    work: PromptWork = field(default_factory=PromptWork)
    transport: str = ""
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    num_attempts: int = 0
    prefill_instance: str = ""
    decode_instance: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """The one terminal event of a request that did not fail."""

    reason: FinishReason
    matched_stop: str
    usage: Usage
    timings: Timings


@dataclass(slots=True)
class Delta:
    """What is new for the reader. `ending` is on the last only."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logit_digests: list[bytes] = field(default_factory=list)
    ending: Ending | None = None


class TextAssembler:
    """One request's output text. `stop_ids` end the sequence and are no part of the text."""

    def __init__(
        self, detokenizer: Detokenizer, matcher: StopMatcher, stop_ids: frozenset[int]
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = matcher
        self._stop_ids = stop_ids
        self._matched_stop: str | None = None

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text."""
        return self._matched_stop

    def push(self, token: Token) -> str:
        """The text that the token settles. Nothing may follow a match."""
        if token.token_id in self._stop_ids:
            return ""
        return self._match(self._detokenizer.push((token.token_id,)))

    def flush(self) -> str:
        """What was held back, once no token follows."""
        if self._matched_stop is not None:
            return ""
        text = self._match(self._detokenizer.flush())
        return text if self._matched_stop is not None else text + self._matcher.flush()

    def _match(self, text: str) -> str:
        if not text:
            return ""
        emit, self._matched_stop = self._matcher.push(text)
        return emit


class Outbox:
    """Between the request's task and its one reader, on one event loop."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._token_ids: list[int] = []
        self._logit_digests: list[bytes] = []
        self._ending: Ending | None = None
        self._error: CrossdockError | None = None
        self._ready = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the terminal event is in."""
        return self._ending is not None or self._error is not None

    def put(self, text: str, tokens: Sequence[Token]) -> None:
        """Adds output. Nothing may follow the terminal event."""
        assert not self.ended
        if text:
            self._pieces.append(text)
        for token in tokens:
            self._token_ids.append(token.token_id)
            if token.logit_digest:
                self._logit_digests.append(token.logit_digest)
        self._ready.set()

    def finish(self, ending: Ending) -> None:
        """The terminal event of a request that went well."""
        assert not self.ended
        self._ending = ending
        self._ready.set()

    def fail(self, error: CrossdockError) -> None:
        """The terminal event of one that did not. Output that waits is still delivered."""
        assert not self.ended
        self._error = error
        self._ready.set()

    async def take(self) -> Delta:
        """Everything since the last call; waits for something. Raises the terminal error."""
        await self._ready.wait()
        has_output = bool(self._pieces or self._token_ids)
        if self._error is not None and not has_output:
            raise self._error
        delta = Delta("".join(self._pieces), self._token_ids, self._logit_digests, self._ending)
        self._pieces, self._token_ids, self._logit_digests = [], [], []
        if self._error is None:
            self._ready.clear()
        return delta
