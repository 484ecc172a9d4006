"""Student's t: how far a mean of few values may be off."""

from __future__ import annotations

import math
from typing import Final

_TINY: Final = 1e-300
_TERMS: Final = 300


def two_sided(t: float, freedom: float) -> float:
    """How likely a value at least as far from 0 as ``t`` is by chance, with ``freedom`` degrees of
    freedom, which need not be whole.

    It is the regularized incomplete beta function I_x(freedom / 2, 1 / 2) of
    x = freedom / (freedom + t^2) (DLMF 8.17.22 has its continued fraction).
    """
    if math.isinf(t):
        return 0.0
    x = freedom / (freedom + t * t)
    a, b = freedom / 2, 0.5
    if x <= 0 or x >= 1:
        return 1.0 if x >= 1 else 0.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def quantile(level: float, freedom: float) -> float:
    """The t that is exceeded on either side, together, with a chance of ``1 - level``: 2.776 for a
    level of 0.95 and 4 degrees of freedom."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > 1 - level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if two_sided(middle, freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return high


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction, by Lentz's method."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + term * d
            c = 1 + term / c
            d = 1 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
