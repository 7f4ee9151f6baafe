"""Numbers in OCP e4m3, as checkpoints of DeepSeek-V3 hold them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from crossdock.models.weights_file import Encoding


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


E4M3: Final = Encoding("F8_E4M3", 1, to_e4m3)
