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

from crossdock.models.catalog import Dtype

# Weights are mapped and read in place: the first byte sits on a cache line.
_ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a file holds numbers: what it calls the type, bytes of one, bit patterns of many."""

    name: str
    num_bytes: int
    encode: Callable[[npt.NDArray[np.float32]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor that will be written: `values` is called once, when its turn comes."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], npt.NDArray[np.float32]]
    encoding: Encoding | None = None  # None: the file's.


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bit patterns of `values` (finite) in bf16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    lowest_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + lowest_kept_bit) >> np.uint32(16)).astype(np.uint16)


ENCODINGS: Final[dict[Dtype, Encoding]] = {
    "f32": Encoding("F32", 4, lambda values: values.astype("<f4", copy=False)),
    "bf16": Encoding("BF16", 2, to_bf16),
}


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
            encoded = (tensor.encoding or ENCODINGS[dtype]).encode(values)
            raw = np.ascontiguousarray(encoded).reshape(-1).view(np.uint8)
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
        encoding = tensor.encoding or ENCODINGS[dtype]
        end = offset + math.prod(tensor.shape) * encoding.num_bytes
        entries[tensor.name] = {
            "dtype": encoding.name,
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
