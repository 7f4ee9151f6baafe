"""An asyncio loop on a world's clock, shared by simulated processes that can be stopped and killed.

Theory of operation. Nothing waits: when no callback is ready, the loop lets the world run on to the
next timer, or to the moment at which an engine has something to say. Every callback carries a
context, and the context names the process it belongs to. A callback of a stopped process is put
aside until the process goes on; one of a dead process never runs again, no `finally` either, as
after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import os
import select
from asyncio import BaseEventLoop, events
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What moves time: the simulated world, or a bare clock."""

    @property
    def now_ns(self) -> int: ...

    def next_ns(self) -> int | None: ...

    def advance(self, until_ns: int) -> bool: ...


_TICK_S = 1e-9
# No fleet has so much to do at one moment; who has waits in a circle, without the clock.
_TURNS_MAX = 100_000


class DeadlockError(Exception):
    """All would wait for ever: nothing is ready, no timer runs and the world has nothing to do. Or
    somebody is always ready, and time stands still.
    """


class State(Enum):
    RUNNING = auto()
    STOPPED = auto()
    DEAD = auto()


class Process:
    """A simulated operating system process: whatever runs in copies of its context."""

    def __init__(self, name: str, host: str, loop: VirtualLoop) -> None:
        self.name = name
        self.host = host
        self.state = State.RUNNING
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(_PROCESS.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 64
        self.parked: list[events.Handle] = []
        self.descriptors: set[int] = set()
        self.on_death: list[Callable[[], None]] = []
        loop.processes.append(self)

    @property
    def alive(self) -> bool:
        return self.state is not State.DEAD

    def context(self) -> contextvars.Context:
        return self._context.copy()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        assert self.alive
        return self._loop.create_task(work, context=self.context())

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> None:
        """Runs it then; once the process goes on if it is stopped, never if it is dead."""
        self._loop.call_at(when_s, callback, *args, context=self.context())

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Tasks of a dead process are kept as they are: destroyed, they would still clean up."""
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._tasks_max = 64 + 2 * len(self._tasks)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.state is State.RUNNING:
            self.state = State.STOPPED

    def resume(self) -> None:
        """SIGCONT."""
        if self.state is not State.STOPPED:
            return
        self.state = State.RUNNING
        self._loop.unpark(self)

    def kill(self) -> None:
        """SIGKILL, also what is left to the operating system at an ordinary end."""
        if self.state is State.DEAD:
            return
        self.state = State.DEAD
        self._tasks = [task for task in self._tasks if not task.done()]
        for callback in self.on_death:
            callback()
        self.on_death.clear()

    def bury(self) -> None:
        """At the end of the world: lets go of what `keep` kept."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.clear()
        self.parked.clear()


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def process_or_none() -> Process | None:
    """Whose code runs now; none where the simulation itself does."""
    return _PROCESS.get()


def current_process() -> Process:
    process = _PROCESS.get()
    assert process is not None, "called outside of every simulated process"
    return process


class VirtualLoop(BaseEventLoop):
    """Runs in one thread; `run_until_complete` as usual. Threads are refused."""

    # Of BaseEventLoop, which types them not.
    _ready: Any
    _scheduled: Any
    _stopping: bool

    def __init__(self, clock: Clock, on_advanced: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._clock = clock
        self._start_ns = clock.now_ns
        self._on_advanced = on_advanced
        self._readers: dict[int, events.Handle] = {}
        self._poll = select.poll()
        self.num_callbacks = 0
        self._num_turns = 0  # since time moved
        self.processes: list[Process] = []
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        return (self._clock.now_ns - self._start_ns) / 1e9

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        # A real clock moves between two looks at it. Here a wait of less than it can tell would
        # end at the same time, and whoever waits again for the rest would do so for ever.
        now_s = self.time()
        when_s = max(when, now_s + _TICK_S) if when > now_s else when
        return super().call_at(when_s, callback, *args, context=context)

    def add_reader(  # type: ignore[override]
        self, fd: int, callback: Callable[..., Any], *args: Any
    ) -> None:
        handle = events.Handle(callback, args, self, None)
        self._readers[fd] = handle
        self._poll.register(fd, select.POLLIN)
        _process_of(handle).descriptors.add(fd)

    def remove_reader(self, fd: Any) -> bool:
        handle = self._readers.pop(fd, None)
        if handle is None:
            return False
        _process_of(handle).descriptors.discard(fd)
        self._poll.unregister(fd)
        return True

    def close(self) -> None:
        """Lets go of the readers of processes that never did."""
        self._readers.clear()
        super().close()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        del executor, args
        raise RuntimeError(f"a simulated process has no threads, but asked for one: {func}")

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """After `delay_s`, as part of no process, whoever asks for it."""
        self.call_later(delay_s, callback, *args, context=contextvars.Context())

    def unpark(self, process: Process) -> None:
        self._ready.extend(process.parked)
        process.parked.clear()
        for fd in sorted(process.descriptors):
            os.eventfd_write(fd, 1)  # its wake-ups were taken away meanwhile

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:
            self._sleep()
            self._num_turns = 0
        self._num_turns += 1
        if self._num_turns > _TURNS_MAX:
            raise DeadlockError(f"time stands still: {self._ready[0]} is ready again and again")
        now_s = self.time() + _TICK_S / 2
        while self._scheduled and self._scheduled[0]._when <= now_s:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            process = handle._context.get(_PROCESS)
            if handle._cancelled or (process is not None and process.state is State.DEAD):
                continue
            if process is not None and process.state is State.STOPPED:
                process.parked.append(handle)
                continue
            self.num_callbacks += 1
            handle._run()

    def _sleep(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        until_ns = self._clock.next_ns()
        if self._scheduled:
            until_ns = self._start_ns + math.ceil(self._scheduled[0]._when * 1e9)
        if until_ns is None:
            raise DeadlockError("nothing is ready, and nothing will be")
        self._clock.advance(max(until_ns, self._clock.now_ns))
        self._find_readable()
        if self._on_advanced is not None:
            self._on_advanced()

    def _find_readable(self) -> None:
        for fd, _ in sorted(self._poll.poll(0)):
            handle = self._readers[fd]
            if _process_of(handle).state is State.RUNNING:
                self._ready.append(handle)
            else:
                os.eventfd_read(fd)  # seen; nobody is there to look

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Of BaseEventLoop, which counts them; here they leave by their time."""


def _process_of(handle: events.Handle) -> Process:
    process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
    assert isinstance(process, Process)
    return process


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    context: contextvars.Context | None = None,
) -> asyncio.Task[T]:
    task = asyncio.Task(work, loop=loop, context=context)
    process = (context or contextvars.copy_context()).get(_PROCESS)
    if process is not None:
        process.keep(task)
    return task
