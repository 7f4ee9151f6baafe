"""What a run of the fault tests did, in numbers: printed at its end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Summary:
    """One table a kind of test; the lines appear in the terminal's summary."""

    lines: list[str] = field(default_factory=list)

    def add(self, what: str, begin_s: float, counts: Counter[str]) -> None:
        parts = ", ".join(f"{how} {n}" for how, n in sorted(counts.items()))
        self.lines.append(f"{what}: {time.monotonic() - begin_s:.0f} s; {parts}")


SUMMARY = Summary()
