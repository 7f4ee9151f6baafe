"""A request from its call to its one terminal event; what both public APIs stand on.

1. `Inference.open` validates what needs no fleet, admits the id, makes the prompt and validates
   the rest. Up to here a failure is an error to the caller and nothing is held.
2. The generation's task drives `Retry` and fills the outbox; the caller's side reads deltas.
3. Leaving `open`'s block, for whatever reason, ends the task and waits for it: both workers'
   calls are over, the load is released and the id is free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from crossdock.errors import CrossdockError, cancelled, deadline_exceeded, internal, not_ready
from crossdock.tokenization import StopMatcher, make_detokenizer
from services.router import validation
from services.router.deadline import Deadline
from services.router.fleet import Fleet
from services.router.live import LiveRequests
from services.router.output import (
    Delta,
    Ending,
    FinishReason,
    Outbox,
    TextAssembler,
    Timings,
    Usage,
)
from services.router.prompting import Prompt, Prompter, TokenPrompt
from services.router.request import RequestLife, RequestState
from services.router.retry import Completion, Job, Retry, worker_request_id
from services.router.sampling import SamplingRequest, StopRules
from services.router.validation import Limits
from services.router.worker import EngineFinish, PromptWork, Token

_log = structlog.get_logger("router.request")


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a request that ran. `outcome` is a finish reason or an error's code."""

    outcome: str
    num_prompt_tokens: int
    num_tokens: int
    ttft_s: float
    tpot_s: float
    duration_s: float
    ending: Ending | None


class Accounts(Protocol):
    """Where requests are counted."""

    def request_refused(self, code: str) -> None:
        """A request that never ran."""

    def request_ended(self, account: Account) -> None:
        """A request that ran."""


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """What a caller asked for, whichever API it came by."""

    prompt: Prompt
    request_id: str = ""
    model: str = ""
    sampling: SamplingRequest = field(default_factory=SamplingRequest)
    return_logit_digests: bool = False
    timeout_s: float | None = None
    request_id_field: str = "request_id"


class Generation:
    """One live request. Used on one event loop."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = 0
        self._life = RequestLife(_now())
        self._outbox = Outbox()
        self._task: asyncio.Task[None] | None = None
        self._assembler: TextAssembler | None = None
        # A task that is cancelled before its first step never reaches its terminal event.
        self._running = False
        self._aborted = False
        self._num_attempts = 0
        self._ending: Ending | None = None
        # Of a task that never took its first step: its caller went away.
        self._outcome = _outcome(cancelled("the caller went away"))

    @property
    def started(self) -> bool:
        """Whether it was accepted."""
        return self._task is not None

    def account(self) -> Account:
        """What became of it, once it is closed."""
        return Account(
            outcome=self._outcome,
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=self._life.num_tokens,
            ttft_s=self._life.ttft_ms() / 1e3,
            tpot_s=self._life.tpot_ms() / 1e3,
            duration_s=_now() - self._life.accepted_s,
            ending=self._ending,
        )

    def abort(self) -> None:
        """Ends it with FinishReason.ABORT, wherever it is."""
        self._aborted = True
        if self._task is not None and self._running:
            self._task.cancel()

    def start(self, job: Job, retry: Retry, assembler: TextAssembler) -> None:
        """From here on `take` leads to exactly one terminal event."""
        self.num_prompt_tokens = len(job.prompt)
        self._assembler = assembler
        self._task = asyncio.create_task(self._run(job, retry))

    async def take(self) -> Delta:
        """Everything new, coalesced while the reader was away. Waits for something; the last one
        has `ending`, or the terminal error is raised."""
        return await self._outbox.take()

    async def close(self) -> None:
        """Ends what still runs and waits for it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self, job: Job, retry: Retry) -> None:
        self._running = True
        error: CrossdockError | None = None
        try:
            if self._aborted:
                raise asyncio.CancelledError
            async with asyncio.timeout_at(job.deadline.at_s):
                completion = await retry.run(job, self._take, self._dispatch)
            self._finish(completion)
        except CrossdockError as failure:
            error = failure
        except TimeoutError:
            error = deadline_exceeded("the deadline passed before the request finished")
        except asyncio.CancelledError:
            if not self._aborted:
                # The reader is gone; the event is for whoever else looks.
                error = cancelled("the caller went away")
            else:
                self._end_with(FinishReason.ABORT, None)
        except Exception as bug:  # noqa: BLE001 -- a bug, too, must end in a terminal event
            _log.exception("request_failed", request_id=self.request_id, exc_info=bug)
            error = internal("internal error; see the log of the router")
        if error is not None and not self._outbox.ended:
            if self._life.state is not RequestState.FINISHED:
                self._life.end()
            self._outcome = _outcome(error)
            self._outbox.fail(error)
        _log.info(
            "request_ended",
            request_id=self.request_id,
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self._life.num_tokens,
            attempts=self._num_attempts,
            ttft_ms=round(self._life.ttft_ms(), 3),
            error=None if error is None else f"{error.code.name} {error.reason}",
        )

    def _dispatch(self) -> None:
        self._num_attempts += 1
        self._life.dispatch()

    def _take(self, tokens: Sequence[Token]) -> bool:
        """The attempts' sink: True once a stop string matched."""
        assert self._assembler is not None
        now_s = _now()
        pieces: list[str] = []
        taken: list[Token] = []
        for token in tokens:
            self._life.token(now_s)
            taken.append(token)
            pieces.append(self._assembler.push(token))
            if self._assembler.matched_stop is not None:
                break
        self._outbox.put("".join(pieces), taken)
        return self._assembler.matched_stop is not None

    def _finish(self, completion: Completion) -> None:
        length = completion.finish is EngineFinish.LENGTH
        self._end_with(FinishReason.LENGTH if length else FinishReason.STOP, completion)

    def _end_with(self, reason: FinishReason, completion: Completion | None) -> None:
        assert self._assembler is not None
        self._life.end()
        rest = self._assembler.flush()
        if rest:
            self._outbox.put(rest, ())
        if self._assembler.matched_stop is not None and reason is FinishReason.LENGTH:
            # The end of the last character completed a stop string.
            reason = FinishReason.STOP
        self._outcome = reason.value
        work = completion.work if completion is not None else PromptWork()
        self._ending = Ending(
            reason=reason,
            matched_stop=self._assembler.matched_stop or "",
            usage=Usage(
                prompt_tokens=self.num_prompt_tokens,
                completion_tokens=self._life.num_tokens,
                # A replay's prompt is longer than the caller's.
                cached_prompt_tokens=min(work.cached_prompt_tokens, self.num_prompt_tokens),
            ),
            timings=self._timings(completion),
        )
        self._outbox.finish(self._ending)

    def _timings(self, completion: Completion | None) -> Timings:
        ttft_ms, tpot_ms = self._life.ttft_ms(), self._life.tpot_ms()
        if completion is None:
            return Timings(ttft_ms=ttft_ms, tpot_ms=tpot_ms, num_attempts=self._num_attempts)
        prefill, decode = completion.placement.prefill, completion.placement.decode
        return Timings(
            work=completion.work,
            transport=completion.work.transport if prefill is not None else "local",
            ttft_ms=ttft_ms,
            tpot_ms=tpot_ms,
            num_attempts=self._num_attempts,
            prefill_instance=prefill.instance_id if prefill is not None else "",
            decode_instance=decode.instance_id,
        )


class Inference:
    """Opens generations. One a router; used on one event loop."""

    def __init__(
        self,
        model: str,
        prompter: Prompter,
        fleet: Fleet,
        retry: Retry,
        live: LiveRequests,
        accounts: Accounts,
    ) -> None:
        self.model = model
        self._accounts = accounts
        self.prompter = prompter
        self.live = live
        self._fleet = fleet
        self._retry = retry

    def limits(self) -> Limits:
        """The bounds of requests now; NOT_READY while an instance role has nobody."""
        limits = self._fleet.limits()
        if limits is None:
            raise not_ready("no prefill and decode instance is ready; retry later")
        return limits

    @asynccontextmanager
    async def open(self, call: InferenceCall) -> AsyncGenerator[Generation, None]:
        """The call as a running generation; leaving the block ends it."""
        generation = Generation(call.request_id or f"{self._retry.random.getrandbits(128):032x}")
        try:
            validation.check_model(call.model, self.model)
            validation.check_request_id(call.request_id, call.request_id_field)
            rules = validation.check_sampling(call.sampling)
            deadline = Deadline.after(call.timeout_s, _now())
            with self.live.admit(generation.request_id, generation):
                prompt = await self.prompter.encode(call.prompt, self.limits())
                job = self._job(call, generation.request_id, prompt, deadline)
                generation.start(job, self._retry, self._assembler(job, rules))
                try:
                    yield generation
                finally:
                    await generation.close()
                    self._accounts.request_ended(generation.account())
        except CrossdockError as error:
            if not generation.started:
                self._accounts.request_refused(_outcome(error))
            raise

    def _job(
        self, call: InferenceCall, request_id: str, prompt: tuple[int, ...], deadline: Deadline
    ) -> Job:
        limits = self.limits()
        name = call.prompt.field
        validation.check_prompt_length(len(prompt), limits, name)
        if isinstance(call.prompt, TokenPrompt):
            validation.check_token_ids(prompt, limits.vocab_size, name)
        sampling = validation.complete_sampling(
            call.sampling, len(prompt), limits, self._retry.random.getrandbits(64)
        )
        eos = frozenset() if sampling.ignore_eos else self._fleet.eos_token_ids()
        return Job(
            request_id=request_id,
            worker_request_id=worker_request_id(request_id, self._retry.random),
            prompt=prompt,
            sampling=sampling,
            stop_ids=eos | frozenset(sampling.stop_token_ids),
            return_logit_digests=call.return_logit_digests,
            deadline=deadline,
        )

    def _assembler(self, job: Job, rules: StopRules) -> TextAssembler:
        return TextAssembler(
            make_detokenizer(self.prompter.tokenizer, context_ids=job.prompt),
            StopMatcher(rules.strings, include_stop_str_in_output=rules.include_in_output),
            job.stop_ids,
        )


def _outcome(error: CrossdockError) -> str:
    return error.code.name.lower()


def _now() -> float:
    return asyncio.get_running_loop().time()
