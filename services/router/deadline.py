"""The caller's deadline as it passes through the router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Kept back from what workers are given, so that their answer can still travel to the caller.
HOP_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment of the event loop's clock in seconds; None: there is none."""

    at_s: float | None

    @staticmethod
    def after(timeout_s: float | None, now_s: float) -> Deadline:
        """`timeout_s` from now."""
        return Deadline(None if timeout_s is None else now_s + timeout_s)

    def for_worker(self, now_s: float) -> float | None:
        """The timeout of a call to a worker that starts now; 0 when it is past."""
        return None if self.at_s is None else max(0.0, self.at_s - now_s - HOP_S)

    def earlier(self, at_s: float) -> float:
        """The earlier of this and another moment."""
        return at_s if self.at_s is None else min(self.at_s, at_s)
