"""Quantised weights, which engines keep on disk so that the next start reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from crossdock.models.cache import cache_directory

# How an engine holds weights; "auto": as the checkpoint has them.
WeightDtype = Literal["auto", "f32", "bf16", "fp8", "int8", "int4"]
WEIGHT_DTYPES: Final[Sequence[WeightDtype]] = get_args(WeightDtype)


def packed_directory() -> Path:
    """Where engines keep them: beside the models, in crossdock/packed of the user's cache."""
    return cache_directory().parent / "packed"
