"""What a front needs of its engine: a link that carries messages and a process that ends.

The native `EngineLink` and a child process are the real ones; tests bring engines in Python.
"""

from __future__ import annotations

from typing import Protocol

from crossdock import _native as native


class Link(Protocol):
    """The front's end of the two rings. Used by one thread."""

    @property
    def to_front_fd(self) -> int:
        """Readable when `receive` may have something to return."""

    def send(self, command: native.Command) -> bool:
        """False when the ring is full now; ValueError when the record can never fit."""

    def receive(self) -> list[native.Event]:
        """All events there are, oldest first."""

    def progress(self) -> tuple[int, bool]:
        """A counter that moves with every layer, and whether the engine is inside a step."""


class Process(Protocol):
    """A running engine process."""

    @property
    def pid(self) -> int: ...

    @property
    def last_words(self) -> str:
        """The last line it wrote that was no log line: the loader's, an assertion's. Else empty."""

    async def wait(self) -> int:
        """The exit code, once it ended; negative for a signal. Any number may wait."""

    def kill(self) -> None:
        """Ends it at once. Harmless when it already ended."""


class Launcher(Protocol):
    """Starts engines, one after the other."""

    async def launch(self) -> tuple[Link, Process]: ...
