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
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from crossdock.models.catalog import Dtype

StoredDtype = Literal["f32", "bf16", "e4m3"]

_FORMAT_DTYPE: Final[dict[StoredDtype, str]] = {"f32": "F32", "bf16": "BF16", "e4m3": "F8_E4M3"}
_STORED_BYTES: Final[dict[StoredDtype, int]] = {"f32": 4, "bf16": 2, "e4m3": 1}
# Weights are mapped and read in place: the first byte sits on a cache line.
_ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor that will be written: `values` is called once, when its turn comes."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], npt.NDArray[np.float32]]
    dtype: StoredDtype | None = None  # None: the file's.


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bit patterns of `values` (finite) in bf16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    lowest_kept_bit = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + lowest_kept_bit) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The f32 values of bf16 bit patterns; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _positive_e4m3() -> npt.NDArray[np.float32]:
    """The finite values of codes 0 to 126: three bits of mantissa, an exponent biased by 7."""
    codes = np.arange(127)
    exponents, mantissas = codes >> 3, codes & 7
    normal = np.ldexp(1 + mantissas / 8, exponents - 7)
    return np.where(exponents > 0, normal, np.ldexp(mantissas / 8, -6)).astype(np.float32)


_E4M3_VALUES: Final = _positive_e4m3()


def to_e4m3(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """The codes of `values` (finite) in OCP e4m3: to nearest, ties to even, at most 448."""
    magnitudes = np.abs(values)
    midpoints = (_E4M3_VALUES[1:] + _E4M3_VALUES[:-1]) / 2  # exact in f32
    codes = np.searchsorted(midpoints, magnitudes, side="left")
    above = np.searchsorted(midpoints, magnitudes, side="right")
    signs = np.where(np.signbit(values), 0x80, 0)
    return (np.where(codes % 2 == 0, codes, above) + signs).astype(np.uint8)


def from_e4m3(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The f32 values of e4m3 codes that stand for finite numbers; exact."""
    magnitudes: npt.NDArray[np.float32] = _E4M3_VALUES[codes & 0x7F]
    return np.copysign(magnitudes, np.where(codes & 0x80, np.float32(-1), np.float32(1)))


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
            raw = (
                np.ascontiguousarray(_stored(values, tensor.dtype or dtype))
                .reshape(-1)
                .view(np.uint8)
            )
            file.write(raw.data)
            written += raw.nbytes
            if on_bytes is not None:
                on_bytes(written)
        file.flush()
        os.fsync(file.fileno())
    return len(header) + written


def _stored(values: npt.NDArray[np.float32], dtype: StoredDtype) -> npt.NDArray[Any]:
    if dtype == "bf16":
        return to_bf16(values)
    if dtype == "e4m3":
        return to_e4m3(values)
    return values.astype("<f4", copy=False)


def _header(tensors: Iterable[TensorPlan], dtype: Dtype, metadata: dict[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for tensor in tensors:
        stored = tensor.dtype or dtype
        end = offset + math.prod(tensor.shape) * _STORED_BYTES[stored]
        entries[tensor.name] = {
            "dtype": _FORMAT_DTYPE[stored],
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
