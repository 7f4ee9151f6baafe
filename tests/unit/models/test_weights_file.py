from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.numpy import load_file

from crossdock.models.catalog import Dtype
from crossdock.models.weights_file import (
    TensorPlan,
    expected_bytes,
    to_bf16,
    write_safetensors,
)

FIRST = np.linspace(0, 11 / 7, 12, dtype=np.float32).reshape(3, 4)
SECOND = np.array([1.5, -2.25], np.float32)
PLANS = [TensorPlan("first", (3, 4), lambda: FIRST), TensorPlan("second", (2,), lambda: SECOND)]


def from_bf16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The f32 values of bf16 bit patterns; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def nearest_bf16(value: float) -> float:
    """By comparing the two neighbours; of two as near, the one with an even last bit."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below, above = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    (low,) = struct.unpack("<f", struct.pack("<I", below))
    (high,) = struct.unpack("<f", struct.pack("<I", above))
    # Half a step past the largest finite value is where infinity begins.
    distance_high = abs((high if abs(high) != float("inf") else 2.0**128) - value)
    distance_low = abs(low - value)
    if abs(distance_high) == distance_low:
        return float(low if below & 0x10000 == 0 else high)
    return float(low if distance_low < distance_high else high)


@example(value=1 + 2**-8)  # Halfway: down to the even neighbour,
@example(value=1 + 3 * 2**-8)  # and up to it.
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bf16_is_the_nearest(value: float) -> None:
    if abs(value) > 3.38e38:  # Where the sign of infinity would need its own rule above.
        return
    rounded = from_bf16(to_bf16(np.array([value], np.float32)))
    assert float(rounded[0]) == nearest_bf16(value)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_library_reads_what_is_written(tmp_path: Path, dtype: Dtype) -> None:
    path = tmp_path / "w.safetensors"
    heard: list[int] = []
    size = write_safetensors(path, PLANS, dtype, {"format": "pt"}, heard.append)
    assert size == path.stat().st_size == expected_bytes(path)
    width = {"f32": 4, "bf16": 2}[dtype]
    assert heard == [12 * width, 14 * width]
    tensors = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    assert tensors["first"]["shape"] == [3, 4]
    assert tensors["second"]["dtype"] == {"f32": "F32", "bf16": "BF16"}[dtype]
    raw = bytes(tensors["first"]["data"])
    values = (
        np.frombuffer(raw, np.float32)
        if dtype == "f32"
        else from_bf16(np.frombuffer(raw, np.uint16))
    )
    np.testing.assert_allclose(values.reshape(3, 4), FIRST, rtol=0 if dtype == "f32" else 2**-8)


def test_weights_begin_on_a_cache_line(tmp_path: Path) -> None:
    for length in range(1, 70):
        path = tmp_path / "w.safetensors"
        write_safetensors(path, PLANS, "f32", {"source": "x" * length})
        assert (path.stat().st_size - 14 * 4) % 64 == 0
        np.testing.assert_array_equal(load_file(path)["second"], SECOND)


def test_a_tensor_of_another_shape_than_planned_is_refused(tmp_path: Path) -> None:
    wrong = TensorPlan("wrong", (4, 3), lambda: FIRST)
    with pytest.raises(ValueError, match="wrong"):
        write_safetensors(tmp_path / "w.safetensors", [wrong], "f32", {})


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]"])
def test_a_broken_header_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"header|Expecting"):
        expected_bytes(path)
