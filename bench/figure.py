"""One measured figure, as the benchmark programs print it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

# The share of its limit that a figure should reach, by the beginning of "bench case". Where the
# limit is a goal in time itself, the ratio is goal over value and 1 is met.
_WANTED = {
    r"engine decode_attention_bf16": 0.85,
    r"engine prefill_(512|2048)": 0.8,
    r"engine decode_one_stream": 0.85,
    r"(scheduler|prefix) ": 1.0,
}


class FigureError(ValueError):
    """A line that a benchmark printed is not a figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A value beside its limit; without a limit it stands for itself.

    `against` says what the limit is where the case does not; `wanted` is the ratio asked for,
    where it is not the case's name that decides.
    """

    bench: str
    case: str
    value: float
    unit: str
    limit: float | None = None
    ratio: float | None = None
    against: str = ""
    wanted: float | None = None

    @classmethod
    def from_line(cls, line: str) -> Figure:
        """Reads a JSON line; fields beyond these, such as percentiles, stay in the file."""
        try:
            fields = json.loads(line)
            return cls(
                bench=str(fields["bench"]),
                case=str(fields["case"]),
                value=float(fields["value"]),
                unit=str(fields["unit"]),
                limit=_number(fields.get("limit")),
                ratio=_number(fields.get("ratio")),
                against=str(fields.get("against", "")),
                wanted=_number(fields.get("wanted")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FigureError(f"not a figure: {line[:200]!r} ({error})") from error

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @property
    def wanted_ratio(self) -> float | None:
        """What the ratio should reach; None where nothing is asked."""
        if self.ratio is None or self.wanted is not None:
            return self.wanted
        name = f"{self.bench} {self.case}"
        return next((ratio for start, ratio in _WANTED.items() if re.match(start, name)), None)

    @property
    def is_met(self) -> bool | None:
        """None where nothing is asked."""
        if self.ratio is None or self.wanted_ratio is None:
            return None
        return self.ratio >= self.wanted_ratio


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))
