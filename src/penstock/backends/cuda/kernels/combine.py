"""Copies, sums, products, activations and limits of rows, element by element."""

from __future__ import annotations

from typing import Literal

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.finish import activate
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.soft_cap import soft_cap as capped
from penstock.backends.cuda.kernels.tiling import launch_rows
from penstock.models.spec import Activation


def combine(
    x: Tensor | None, y: Tensor, out: Tensor, activation: Activation | Literal["none"] = "none"
) -> None:
    """Compute ``out = x + activation(y)`` in float32, rounded to out's type; a None x adds nothing.

    x, y and out ``[rows, c]``, of any floating types; out may be x or y. This is the ``Features``,
    ``Join`` (of each of its parts), ``Activate``, ``Add`` and ``AddActivated`` of plan/ops.
    """
    rows, cols = out.shape
    launch_rows(
        _combine,
        rows,
        cols,
        y if x is None else x,
        y,
        out,
        rows,
        cols,
        (y if x is None else x).stride(0),
        y.stride(0),
        out.stride(0),
        HAS_X=x is not None,
        ACTIVATION=activation,
        INTERPRETED=INTERPRETED,
    )


def gate(x: Tensor, up: Tensor, out: Tensor, activation: Activation) -> None:
    """Run ``plan.ops.Gate``: ``out = activation(x) * up``; x and up float32, out may be either."""
    _change(x, up, out, activation, 0.0)


def scale(x: Tensor, out: Tensor, factor: float) -> None:
    """Run ``plan.ops.Scale``: ``out = x * factor``; x float32, and out may be x."""
    _change(x, None, out, "scale", factor)


def soft_cap(x: Tensor, out: Tensor, cap: float) -> None:
    """Run ``plan.ops.SoftCap``: ``out = cap * tanh(x / cap)``; x float32, and out may be x."""
    _change(x, None, out, "cap", cap)


def clamp(x: Tensor, out: Tensor, limit: float) -> None:
    """Run ``plan.ops.Clamp``: x from ``-limit`` to ``limit``; x float32, and out may be x."""
    _change(x, None, out, "clamp", limit)


def _change(x: Tensor, by: Tensor | None, out: Tensor, kind: str, factor: float) -> None:
    rows, cols = out.shape
    launch_rows(
        _change_rows,
        rows,
        cols,
        x,
        x if by is None else by,
        out,
        rows,
        cols,
        x.stride(0),
        (x if by is None else by).stride(0),
        out.stride(0),
        factor,
        KIND=kind,
        INTERPRETED=INTERPRETED,
    )


@triton.jit(do_not_specialize=["rows", "factor"])
def _change_rows(
    x,
    by,
    out,
    rows,
    cols,
    x_stride,
    by_stride,
    out_stride,
    factor,
    KIND: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scale, cap or clamp x, or multiply its activation by ``by``; KIND: "scale", "cap", "clamp" or
    which activation."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < cols)
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if KIND == "scale":
        y = y * factor
    elif KIND == "cap":
        y = capped(y, factor)
    elif KIND == "clamp":
        y = tl.where(y < -factor, -factor, tl.where(y > factor, factor, y))  # NaN stays NaN
    else:
        y = activate(y, KIND) * tl.load(by + row * by_stride + column, mask=inside, other=0.0)
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + column, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _combine(
    x,
    y,
    out,
    rows,
    cols,
    x_stride,
    y_stride,
    out_stride,
    HAS_X: tl.constexpr,
    ACTIVATION: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < cols)
    total = tl.load(y + row * y_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION != "none":
        total = activate(total, ACTIVATION)
    if HAS_X:
        total = tl.load(x + row * x_stride + column, mask=inside, other=0.0) + total
    total = cast(total, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + column, total, mask=inside)
