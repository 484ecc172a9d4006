"""Fused multiply-adds on the reference backend round once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.reference.fused import fma

FLOATS = st.floats(width=32, min_value=-(2.0**60), max_value=2.0**60)


def nearest(exact: Fraction) -> np.float32:
    """The float32 that is nearest, of two the one whose last bit is 0."""
    guess = np.float32(float(exact))
    near = [guess, *(np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf))]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) % 2))


def check(a: float, b: float, c: float) -> None:
    got = fma(np.float32([a]), np.float32([b]), np.float32([c]))
    expected = nearest(Fraction(a) * Fraction(b) + Fraction(c))
    assert got[0] == expected, (a, b, c)


@given(FLOATS, FLOATS, FLOATS)
def test_it_rounds_once(a: float, b: float, c: float) -> None:
    check(a, b, c)


@given(st.integers(0, 2**23 - 1), st.sampled_from([-1, 1]))
def test_no_tie_is_made_of_what_is_none(bits: int, sign: int) -> None:
    """The sum lies so near to the middle of two numbers that float64 has it there."""
    c = 1 + bits * 2.0**-23
    check(sign * (1 + 2.0**-23), (1 - 2.0**-23) * 2.0**-24, c)  # 2**-24 - 2**-70
    check(sign, 2.0**-24, c)


def test_numbers_that_are_not_finite() -> None:
    inf, nan = np.inf, np.nan
    a = np.float32([inf, 1, inf, nan, 2.0**100, -0.0])
    b = np.float32([1, 1, 0, 1, 2.0**100, 1])
    c = np.float32([1, inf, 1, 1, 1, -0.0])
    got = fma(a, b, c)
    np.testing.assert_array_equal(got, np.float32([inf, inf, nan, nan, inf, -0.0]))
    assert np.signbit(got[-1])
