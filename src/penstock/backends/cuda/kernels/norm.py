"""Norms of rows, and addition to the residual before one: one program a row on a GPU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiling import rows_at_once

MAX_COLS = 32768
"""A row is held in registers: 64 a thread at most."""

_ROWS = rows_at_once(1)


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor | None, out: Tensor, eps: float
) -> None:
    """Run ``plan.ops.AddNorm``: residual and delta ``[rows, c]``, weight ``[c]``, all float32;
    a None weight multiplies by nothing."""
    rows, cols = residual.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(cols)
    _add_norm[(triton.cdiv(rows, _ROWS),)](
        residual,
        residual if delta is None else delta,
        residual if weight is None else weight,
        out,
        rows,
        cols,
        residual.stride(0),
        residual.stride(0) if delta is None else delta.stride(0),
        out.stride(0),
        EPS=eps,
        HAS_DELTA=delta is not None,
        HAS_WEIGHT=weight is not None,
        INTERPRETED=INTERPRETED,
        ROWS=_ROWS,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        enable_fp_fusion=False,
    )


def rms_norm(x: Tensor, weight: Tensor | None, out: Tensor, eps: float) -> None:
    """Run ``plan.ops.RmsNorm``, with the bits of :func:`add_norm`; out may be x."""
    add_norm(x, None, weight, out, eps)


def layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, out: Tensor, eps: float
) -> None:
    """Run ``plan.ops.LayerNorm``: x float32 ``[rows, c]``, weight and bias float32 ``[c]``; out may
    be x."""
    rows, cols = x.shape
    if rows == 0:
        return
    block = triton.next_power_of_2(cols)
    _layer_norm[(triton.cdiv(rows, _ROWS),)](
        x,
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        rows,
        cols,
        x.stride(0),
        out.stride(0),
        EPS=eps,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        INTERPRETED=INTERPRETED,
        ROWS=_ROWS,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["rows"])
def _layer_norm(
    x,
    weight,
    bias,
    out,
    rows,
    cols,
    x_stride,
    out_stride,
    EPS: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    y = tl.where(inside, y - (tl.sum(y, axis=1) / cols)[:, None], 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(y * y, axis=1) / cols + EPS)
    y = y * factor[:, None]
    if HAS_WEIGHT:
        y = y * tl.load(weight + column, mask=column < cols, other=0.0)
    if HAS_BIAS:
        y += tl.load(bias + column, mask=column < cols, other=0.0)
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + column, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _add_norm(
    residual,
    delta,
    weight,
    out,
    rows,
    cols,
    residual_stride,
    delta_stride,
    out_stride,
    EPS: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < cols)
    x = tl.load(residual + row * residual_stride + column, mask=inside, other=0.0)
    if HAS_DELTA:
        x += tl.load(delta + row * delta_stride + column, mask=inside, other=0.0)
        tl.store(residual + row * residual_stride + column, x, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / cols + EPS)
    y = x * scale[:, None]
    if HAS_WEIGHT:
        y = y * tl.load(weight + column, mask=column < cols, other=0.0)
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + column, y, mask=inside)
