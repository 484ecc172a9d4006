"""Rounding to the type of a buffer or cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cast(x, dtype: tl.constexpr, INTERPRETED: tl.constexpr):
    """Return float32 ``x`` in ``dtype``, rounded to nearest even.

    The interpreter cuts off the low bits where hardware rounds to bfloat16.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + (((bits >> 16) & 1) + 0x7FFF)) & -65536
        x = tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)
    return x.to(dtype)


@triton.jit
def nearest_whole(x):
    """Round float32 ``x``, below 2**22 in magnitude, to a whole number; ties go to even."""
    return (x + 12582912.0) - 12582912.0  # 1.5 * 2**23: one unit in its last place is 1
