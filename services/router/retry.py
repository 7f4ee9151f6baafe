"""From a validated prompt to the last token, over as many attempts as it takes.

1. Policy places the attempt. Nobody there: OVERLOADED when all refused, UNAVAILABLE else; after a
   loss, the router waits a bounded time for an instance to come back.
2. The attempt runs. REFUSED: the instance is excluded for this request, and the next one is tried.
   MISMATCHED: the same of the two together; where no other pair is left, that is the answer.
   LOST: the instance at fault is avoided until its next good report, and a new attempt replays
   the prompt and everything generated so far; draws depend on the position, so the continuation
   is what it would have been. At most `migrations_max` losses. FATAL: the error is the answer.
3. A replay is pointless once the last token was the last by its own right: then the router ends
   the request itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

import structlog

from crossdock.errors import Code, CrossdockError, not_ready, overloaded
from crossdock.rpc.surroundings import REAL
from services.router.attempt import Attempt, Failed, Finished, Sink
from services.router.deadline import Deadline
from services.router.fleet import Fleet
from services.router.merge import TokenMerge
from services.router.policy import Demand, Placement, Vacancy, VacancyCause, place
from services.router.sampling import Sampling
from services.router.verdict import Kind
from services.router.worker import (
    AttemptOrder,
    EngineFinish,
    PromptWork,
    Role,
    Workers,
)

HANDOFF_ID_BYTES: Final = 16
# How an attempt ended that did not fail.
FINISHED: Final = "finished"
CANCELLED: Final = "cancelled"
RETRY_AFTER_S: Final = 1.0
# A suspect's next report is at most a second away; it may be late.
TRUST_WAIT_S: Final = 2.5
# With the part that makes it unique, an id stays within the 128 bytes that workers take.
_CALLER_ID_BYTES_MAX: Final = 96

_log = structlog.get_logger("router.retry")


@dataclass(frozen=True, slots=True)
class Job:
    """A request as the attempts need it. `stop_ids` end the sequence, the model's own included."""

    request_id: str
    worker_request_id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    stop_ids: frozenset[int]
    return_logit_digests: bool
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class Loss:
    """The last attempt that was lost, and how long to look for another instance."""

    error: CrossdockError
    wait_until_s: float


@dataclass(frozen=True, slots=True)
class Completion:
    """How a job ended. `finish` is None when the sink stopped it."""

    finish: EngineFinish | None
    work: PromptWork
    placement: Placement


@dataclass(slots=True)
class Avoided:
    """What a request need not try: instances that refused it, pairs that cannot be, and why."""

    instances: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    mismatch: CrossdockError | None = None

    def add(self, placement: Placement, failed: Failed) -> None:
        """After an attempt that another placement may do better."""
        if failed.verdict.kind is Kind.REFUSED:
            self.instances.update(_at_fault(placement, failed))
        elif placement.prefill is not None:
            self.pairs.add((placement.prefill.address, placement.decode.address))
            self.mismatch = failed.error

    def answer(self, vacancy: Vacancy) -> CrossdockError:
        """What the caller is told when nothing is left: trying later heals no mismatch."""
        all_refused = vacancy.cause is VacancyCause.ALL_REFUSED
        if all_refused and not self.instances and self.mismatch is not None:
            return self.mismatch
        return _vacancy_error(vacancy)


class Reports(Protocol):
    """Where news about instances comes from."""

    async def wait_news(self, timeout_s: float) -> None:
        """Returns after the next report of any instance, or after the time."""
        ...


class AttemptAccounts(Protocol):
    """Where attempts are counted."""

    def attempt_started(self, after: Kind | None) -> None:
        """`after`: how the attempt before it failed."""

    def attempt_ended(self, outcome: str) -> None:
        """How it ended: finished, cancelled, or the kind of its failure."""


@dataclass(frozen=True, slots=True)
class RetryBounds:
    """`instance_wait_s`: how long a request that lost its instance waits for one to come back."""

    migrations_max: int = 3
    instance_wait_s: float = 10.0


class Retry:
    """Drives jobs. Shared by all requests of the router, on one event loop.

    Handoff ids, names for workers and seeds that callers left out are drawn from `random`.
    """

    def __init__(
        self,
        fleet: Fleet,
        workers: Workers,
        reports: Reports,
        bounds: RetryBounds,
        accounts: AttemptAccounts,
        random: Random = REAL.random,
    ) -> None:
        self.random = random
        self._accounts = accounts
        self._fleet = fleet
        self._workers = workers
        self._reports = reports
        self._bounds = bounds
        self._rotation = 0

    async def run(self, job: Job, sink: Sink, on_dispatch: Callable[[], None]) -> Completion:
        """The job's end, or the error that is the caller's answer."""
        merge = TokenMerge(len(job.prompt))
        avoided = Avoided()
        loss: Loss | None = None
        failure: Kind | None = None
        num_losses = 0
        number = 0
        while True:
            number += 1
            placement = await self._place(job, len(merge.token_ids), avoided, loss)
            on_dispatch()
            self._accounts.attempt_started(failure)
            result = await self._attempt(job, placement, number, merge, sink)
            if isinstance(result, Finished):
                return Completion(result.finish, result.work, placement)
            self._note(job, placement, result)
            failure = result.verdict.kind
            if failure is Kind.FATAL:
                raise result.error
            if (finish := _ended_by_itself(job, merge.token_ids)) is not None:
                return Completion(finish, PromptWork(), placement)
            if failure in (Kind.REFUSED, Kind.MISMATCHED):
                avoided.add(placement, result)
                continue
            avoided.instances.clear()
            loss = Loss(result.error, self._wait_until(job))
            num_losses += 1
            if num_losses > self._bounds.migrations_max:
                raise _given_up(result.error, num_losses) from result.error

    async def _attempt(
        self, job: Job, placement: Placement, number: int, merge: TokenMerge, sink: Sink
    ) -> Finished | Failed:
        num_generated = len(merge.token_ids)
        token_ids = job.prompt + tuple(merge.token_ids)
        order = AttemptOrder(
            request_id=job.worker_request_id,
            # The caller's id never leads to a handoff's: two attempts cannot meet.
            handoff_id=self.random.randbytes(HANDOFF_ID_BYTES) if placement.prefill else b"",
            attempt=number,
            token_ids=token_ids,
            num_generated_tokens=num_generated,
            sampling=job.sampling.after(num_generated),
            return_logit_digests=job.return_logit_digests,
            prefill=placement.prefill,
            decode=placement.decode,
        )
        timeout_s = job.deadline.for_worker(asyncio.get_running_loop().time())
        total_tokens = len(job.prompt) + job.sampling.max_tokens
        with self._fleet.load(placement, len(token_ids), total_tokens) as release_prefill:
            attempt = Attempt(self._workers, order, merge, timeout_s)
            outcome = CANCELLED
            try:
                result = await attempt.run(sink, release_prefill)
                outcome = FINISHED
                if isinstance(result, Failed):
                    outcome = result.verdict.kind.value
                return result
            finally:
                self._accounts.attempt_ended(outcome)

    async def _place(
        self, job: Job, num_generated: int, avoided: Avoided, loss: Loss | None
    ) -> Placement:
        """Where the next attempt goes.

        Before a loss an answer is due at once, but that a suspect may be cleared in a moment. After
        one the caller has been promised more: an instance that is away or full is waited for.
        """
        loop = asyncio.get_running_loop()
        trust_until_s = job.deadline.earlier(loop.time() + TRUST_WAIT_S)
        while True:
            demand = Demand(
                prompt_tokens=len(job.prompt) + num_generated,
                total_tokens=len(job.prompt) + job.sampling.max_tokens,
                excluded=frozenset(avoided.instances),
                mismatched=frozenset(avoided.pairs),
            )
            found = place(self._fleet.snapshot(), demand, self._rotation)
            if isinstance(found, Placement):
                self._rotation += 1
                return found
            until_s = loss.wait_until_s if loss is not None else 0.0
            if found.cause is VacancyCause.ALL_SUSPECT:
                until_s = max(until_s, trust_until_s)
            left_s = until_s - loop.time()
            if left_s <= 0:
                raise avoided.answer(found) from (loss.error if loss else None)
            await self._reports.wait_news(left_s)
            if loss is not None:
                avoided.instances.clear()

    def _wait_until(self, job: Job) -> float:
        now_s = asyncio.get_running_loop().time()
        return job.deadline.earlier(now_s + self._bounds.instance_wait_s)

    def _note(self, job: Job, placement: Placement, failed: Failed) -> None:
        """Keeps what a failed attempt says about the instances."""
        if failed.verdict.kind is Kind.LOST:
            for role in failed.verdict.at_fault:
                target = placement.prefill if role is Role.PREFILL else placement.decode
                if target is not None:
                    self._fleet.record_failure(role, target.address)
        _log.warning(
            "attempt_failed",
            request_id=job.request_id,
            kind=failed.verdict.kind.value,
            code=failed.error.code.name,
            reason=failed.error.reason,
            error=failed.error.message,
            prefill=placement.prefill.instance_id if placement.prefill else None,
            decode=placement.decode.instance_id,
        )


def worker_request_id(request_id: str, random: Random) -> str:
    """A name for workers that begins with the caller's and is unique.

    Two routers may have callers with the same idea of an id, and a caller may use one again
    while a worker still ends the former request.
    """
    return f"{request_id[:_CALLER_ID_BYTES_MAX]}-{random.getrandbits(64):016x}"


def _at_fault(placement: Placement, failed: Failed) -> list[str]:
    targets = {Role.PREFILL: placement.prefill, Role.DECODE: placement.decode}
    return [
        target.address for role in failed.verdict.at_fault if (target := targets[role]) is not None
    ]


def _ended_by_itself(job: Job, generated: list[int]) -> EngineFinish | None:
    """Whether the last token was the last one, and only the word of it was lost."""
    if generated and generated[-1] in job.stop_ids:
        return EngineFinish.STOP
    if len(generated) >= job.sampling.max_tokens:
        return EngineFinish.LENGTH
    return None


def _given_up(error: CrossdockError, num_losses: int) -> CrossdockError:
    """What the last of several lost attempts means to the caller: another try may succeed.

    Whatever code it had between instances (ABORTED, CANCELLED, NOT_FOUND) is not the caller's.
    """
    text = f"{num_losses} attempts were lost, the last one by: {error.message}; retry later"
    return CrossdockError(Code.UNAVAILABLE, text, error.reason, retry_after_s=RETRY_AFTER_S)


def _vacancy_error(vacancy: Vacancy) -> CrossdockError:
    text = f"no {vacancy.role.value} instance for the request: {vacancy.cause.value}; retry later"
    if vacancy.cause is VacancyCause.ALL_REFUSED:
        return overloaded(text, RETRY_AFTER_S)
    return not_ready(text)
