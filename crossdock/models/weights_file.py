"""Writes safetensors files tensor by tensor.

The library's own writer wants all tensors in memory at once and knows no bf16 without torch.
Here the shapes come first and the values one tensor at a time, so that converting a model holds
one tensor, reports progress, and a full disk is an ordinary OSError.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from crossdock.models.catalog import DTYPE_BYTES, Dtype

_FORMAT_DTYPE: Final[dict[Dtype, str]] = {"f32": "F32", "bf16": "BF16"}
# Weights are mapped and read in place: the first byte sits on a cache line.
_ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor that will be written: `values` is called once, when its turn comes."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], npt.NDArray[np.float32]]


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bit patterns of `values` (finite) in bf16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    lowest_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + lowest_kept_bit) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The f32 values of bf16 bit patterns; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def write_safetensors(
    path: Path,
    tensors: Sequence[TensorPlan],
    dtype: Dtype,
    metadata: dict[str, str],
    on_bytes: Callable[[int], None] | None = None,
) -> int:
    """Writes and syncs the file; returns its size in bytes.

    `on_bytes` hears the number of weight bytes written so far.
    """
    header = _header(tensors, dtype, metadata)
    written = 0
    with path.open("wb") as file:
        file.write(header)
        for tensor in tensors:
            values = tensor.values()
            if values.shape != tensor.shape:
                raise ValueError(f"{tensor.name}: planned {tensor.shape}, got {values.shape}")
            stored = to_bf16(values) if dtype == "bf16" else values.astype("<f4", copy=False)
            raw = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
            file.write(raw.data)
            written += raw.nbytes
            if on_bytes is not None:
                on_bytes(written)
        file.flush()
        os.fsync(file.fileno())
    return len(header) + written


def _header(tensors: Iterable[TensorPlan], dtype: Dtype, metadata: dict[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for tensor in tensors:
        end = offset + math.prod(tensor.shape) * DTYPE_BYTES[dtype]
        entries[tensor.name] = {
            "dtype": _FORMAT_DTYPE[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    padding = -(8 + len(text)) % _ALIGNMENT_BYTES
    return (len(text) + padding).to_bytes(8, "little") + text + b" " * padding


def expected_bytes(path: Path) -> int:
    """The size that the file's own header promises. Raises ValueError for a broken header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path.name}: the header is longer than the file")
        entries = json.loads(file.read(length))
    if not isinstance(entries, dict):
        raise ValueError(f"{path.name}: the header is not a JSON object")
    ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)
