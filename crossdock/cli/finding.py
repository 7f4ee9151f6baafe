"""What the doctor says about one subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact: fine, worth knowing, or in the way; and what to do about it."""

    subject: str
    state: State
    fact: str
    remedy: str = ""
