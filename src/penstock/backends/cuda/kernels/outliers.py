"""A few weights of each row in floats, added to what a product made of the others.

A program has one row of x and some columns of out, and reads ``_AT_ONCE`` weights of each at a
time: what they multiply lies anywhere in the row of x, which a multiprocessor's L1 holds. One row
of x waits for two or three rounds of two dependent loads, some 3 us. Many rows take a cycle of a
multiprocessor for each weight and row: 2,048 rows by 0.45 % of an ``[4096, 4096]`` matrix 0.7 ms of
an H100, ten times what the product takes. Nothing of that has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.finish import gated as gated_by
from penstock.backends.cuda.kernels.launch import gating
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.models.spec import Gating

_COLS: Final = 32
_AT_ONCE: Final = 16


@dataclass(frozen=True)
class Outliers:
    """Weights that stay in floats, on the device, row by row."""

    starts: Tensor
    """int32 ``[weight_rows + 1]``: where the weights of each row begin."""
    places: Tensor
    """int32 ``[count]``: their columns."""
    deltas: Tensor
    """float32 ``[count]``: by how much they exceed what their codes stand for."""

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.places.nbytes + self.deltas.nbytes


def add_outliers(
    sums: Tensor,
    outliers: Outliers,
    x: Tensor,
    bias: Tensor | None,
    gated: Gating | None,
    out: Tensor,
) -> None:
    """Add to sums float32 ``[rows, weight_rows]`` what the outliers make of x ``[rows, k]``, then
    bias float32 ``[weight_rows]``; gate, and round to out ``[rows, n]``. Elements of a row are
    adjacent."""
    rows, n = out.shape
    if rows == 0:
        return
    _add[(rows, triton.cdiv(n, _COLS))](
        sums,
        x,
        outliers.starts,
        outliers.places,
        outliers.deltas,
        sums if bias is None else bias,
        out,
        n,
        sums.stride(0),
        x.stride(0),
        out.stride(0),
        HAS_BIAS=bias is not None,
        **gating(gated),
        INTERPRETED=INTERPRETED,
        COLS=_COLS,
        AT_ONCE=_AT_ONCE,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit
def _add(
    sums, x, starts, places, deltas, bias, out, n, sums_stride, x_stride, out_stride,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, ALPHA: tl.constexpr,
    INTERPRETED: tl.constexpr, COLS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Grid: rows, blocks of ``COLS`` columns of out."""
    row = tl.program_id(0).to(tl.int64)
    ns = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = ns < n
    x_row, of_row = x + row * x_stride, sums + row * sums_stride
    y = _with_outliers(of_row, x_row, starts, places, deltas, ns, inside, AT_ONCE)
    if HAS_BIAS:
        y += tl.load(bias + ns, mask=inside, other=0.0)
    if ACTIVATION != "none":
        up = _with_outliers(of_row, x_row, starts, places, deltas, n + ns, inside, AT_ONCE)
        if HAS_BIAS:
            up += tl.load(bias + n + ns, mask=inside, other=0.0)
        y = gated_by(y, up, ACTIVATION, LIMIT, ALPHA)
    tl.store(out + row * out_stride + ns, cast(y, out.dtype.element_ty, INTERPRETED), mask=inside)


@triton.jit
def _with_outliers(sums, x, starts, places, deltas, ns, inside, AT_ONCE: tl.constexpr):
    """Return sums float32 ``[COLS]`` with outliers of rows ns, ``AT_ONCE`` of each at a time."""
    y = tl.load(sums + ns, mask=inside, other=0.0)
    first = tl.load(starts + ns, mask=inside, other=0)
    end = tl.load(starts + ns + 1, mask=inside, other=0)
    most = tl.max(end - first, axis=0)
    for at in range(0, most, AT_ONCE):
        each = first[:, None] + at + tl.arange(0, AT_ONCE)[None, :]
        there = each < end[:, None]
        column = tl.load(places + each, mask=there, other=0)
        value = tl.load(x + column, mask=there, other=0).to(tl.float32)
        y += tl.sum(tl.load(deltas + each, mask=there, other=0.0) * value, axis=1)
    return y
