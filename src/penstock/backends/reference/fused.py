"""Fused multiply-adds, which NumPy lacks."""

from __future__ import annotations

import numpy as np

from penstock.backends.reference.products import F32


def fma(a: F32, b: F32, c: F32) -> F32:
    """Return ``a * b + c`` in float32, rounded once (nearest even).

    A product of two float32 is exact in float64, and the sum is rounded to odd there, which leaves
    a second rounding to less than half as many bits no tie that was none (Boldo and Melquiond,
    "Emulation of FMA and correctly rounded sums", 2008).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product, addend = a.astype(np.float64) * b, np.asarray(c, np.float64)
        total = product + addend
        # What rounding lost (Knuth's TwoSum), which is exact; NaN where numbers are not finite.
        virtual = total - product
        lost = (product - (total - virtual)) + (addend - virtual)
        even = np.ascontiguousarray(total).view(np.int64) % 2 == 0
        toward = np.nextafter(total, np.copysign(np.inf, lost))
        odd = np.where(even & (np.abs(lost) > 0), toward, total)
        return np.asarray(odd.astype(np.float32))
