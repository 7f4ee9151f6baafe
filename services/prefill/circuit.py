"""Leaves a service alone for a while after it failed, so that its trouble costs others little."""

from __future__ import annotations


class Circuit:
    """Closed: calls pass. Open: none do until the pause is over; then one call tells.

    Pure: the clock is an argument, in seconds.
    """

    def __init__(self, *, pause_min_s: float, pause_max_s: float) -> None:
        self._pause_min_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._pause_s = pause_min_s
        self._open_until_s = float("-inf")
        self._probing = False

    def admits(self, now_s: float) -> bool:
        """Whether a call may be made now. Every call that was admitted reports its outcome."""
        if self._open_until_s == float("-inf"):
            return True
        if now_s < self._open_until_s or self._probing:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        self._probing = False
        self._pause_s = self._pause_min_s
        self._open_until_s = float("-inf")

    def failed(self, now_s: float) -> None:
        if now_s < self._open_until_s:
            return  # one of several calls that were under way together: the same trouble
        self._probing = False
        self._open_until_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._pause_max_s)
