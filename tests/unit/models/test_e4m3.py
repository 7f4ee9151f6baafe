from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tiny_models.e4m3 import from_e4m3, to_e4m3

E4M3 = from_e4m3(np.arange(127, dtype=np.uint8))


def test_e4m3_is_that_of_the_specification() -> None:
    # OCP 8-bit floating point specification, revision 1.0, table 2.
    assert list(E4M3[[0, 1, 7, 8, 0x38, 126]]) == [0, 2**-9, 7 * 2**-9, 2**-6, 1, 448]
    assert list(from_e4m3(np.array([0x80, 0xB8], np.uint8))) == [-0.0, -1]
    codes = np.array([*range(127), *range(129, 255)], np.uint8)
    assert np.array_equal(to_e4m3(from_e4m3(codes)), codes)


@example(value=17.0)  # Halfway: down to the even code of 16,
@example(value=19.0)  # and up to that of 20.
@given(value=st.floats(-500, 500, width=32))
def test_e4m3_is_the_nearest(value: float) -> None:
    rounded = float(from_e4m3(to_e4m3(np.array([value], np.float32)))[0])
    distances = np.abs(E4M3.astype(np.float64) - abs(value))
    nearest = np.flatnonzero(distances == distances.min())
    wanted = E4M3[nearest[nearest % 2 == 0][0] if len(nearest) > 1 else nearest[0]]
    assert rounded == np.copysign(wanted, value)
