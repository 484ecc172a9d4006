"""Values that are held below a cap, smoothly."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def soft_cap(x, cap):
    """Return ``cap * tanh(x / cap)`` of float32 ``x``; csrc/simd.h has the same tanh."""
    y = x / cap
    square = y * y
    # The polynomial is ours, of least relative error for |y| <= 5/8; beyond, nothing cancels.
    p = -0.00609671418 * square + 0.0209971797
    p = p * square - 0.0538509078
    p = p * square + 0.133327693
    p = p * square - 0.333333284
    size = tl.abs(y)
    far = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return cap * tl.where(size < 0.625, y + y * square * p, tl.where(y < 0, -far, far))
