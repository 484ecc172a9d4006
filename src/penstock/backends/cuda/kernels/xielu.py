"""The activation xIELU, whose four parameters are weights."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiling import launch_rows


def xielu(x: Tensor, p: Tensor, n: Tensor, beta: Tensor, eps: Tensor, out: Tensor) -> None:
    """Run ``plan.ops.Xielu``: x float32 ``[rows, c]``, the parameters float32 ``[1]``; out may be
    x."""
    rows, cols = out.shape
    launch_rows(
        _xielu,
        rows,
        cols,
        x,
        p,
        n,
        beta,
        eps,
        out,
        rows,
        cols,
        x.stride(0),
        out.stride(0),
        INTERPRETED=INTERPRETED,
    )


@triton.jit(do_not_specialize=["rows"])
def _xielu(
    x,
    p,
    n,
    beta,
    eps,
    out,
    rows,
    cols,
    x_stride,
    out_stride,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < cols)
    slope = tl.load(beta)
    rising = _softplus(tl.load(p))
    falling = slope + _softplus(tl.load(n))
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    low = tl.minimum(y, tl.load(eps))
    # e^low - 1 - y, of which the part that cancels near zero is computed by itself.
    below = _expm1_less(low) + (low - y)
    linear = slope * y
    y = tl.where(y > 0.0, rising * y * y + linear, below * falling + linear)
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + column, y, mask=inside)


@triton.jit
def _softplus(x):
    """Return ``log(1 + e^x)``."""
    # log(1 + e) is 2 artanh(e / (2 + e)), with e from 0 to 1: the argument is a third at most, and
    # the first term that is left out 1e-8 of the sum.
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    square = s * s
    series = square * 0.07692308 + 0.09090909
    series = series * square + 0.11111111
    series = series * square + 0.14285714
    series = series * square + 0.2
    series = series * square + 0.33333333
    return tl.maximum(x, 0.0) + 2.0 * (s + s * square * series)


@triton.jit
def _expm1_less(x):
    """Return ``e^x - 1 - x``, without what cancels near zero."""
    # Taylor's series up to x^9 / 9!, of which the rest is below 1e-8 of the sum.
    series = x * 2.7557319e-06 + 2.4801587e-05
    series = series * x + 1.9841270e-04
    series = series * x + 1.3888889e-03
    series = series * x + 8.3333333e-03
    series = series * x + 4.1666667e-02
    series = series * x + 1.6666667e-01
    series = series * x + 0.5
    return tl.where(tl.abs(x) < 0.5, x * x * series, tl.exp(x) - 1.0 - x)
