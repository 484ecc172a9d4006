"""Latents written to the cache, and heads put together of parts."""

from __future__ import annotations

from typing import Protocol

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.codes import coded
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiling import launch_rows, rows_at_once

_TOKENS = rows_at_once(4)


class LatentArrays(Protocol):
    """The arrays of a layer's latents that are written; ``cache.LatentCache`` has them."""

    @property
    def rows(self) -> Tensor: ...

    @property
    def value_dim(self) -> int: ...

    @property
    def latent_scales(self) -> Tensor | None: ...

    @property
    def key_scales(self) -> Tensor | None: ...


def write_latents(x: Tensor, cache: LatentArrays, slots: Tensor) -> None:
    """Run ``plan.ops.KvWrite`` without values: x float32 ``[T, dim]``, slots int32 ``[T]``. Tokens
    whose slot is negative write nothing."""
    tokens, dim = x.shape
    if tokens == 0:
        return
    rows, scales = cache.rows, (cache.latent_scales, cache.key_scales)
    _write_latents[(triton.cdiv(tokens, _TOKENS), 2)](
        x,
        rows,
        rows if scales[0] is None else scales[0],
        rows if scales[1] is None else scales[1],
        slots,
        tokens,
        x.stride(0),
        VALUE_DIM=cache.value_dim,
        DIM=dim,
        QUANTIZED=scales[0] is not None,
        INTERPRETED=INTERPRETED,
        SOME=_TOKENS,
        BLOCK=triton.next_power_of_2(max(cache.value_dim, dim - cache.value_dim)),
        num_warps=2,
        enable_fp_fusion=False,
    )


def put_in_heads(x: Tensor, out: Tensor, heads: int, first: int) -> None:
    """Put each head's columns of x ``[rows, heads * c]`` into that head of out ``[rows, heads *
    d]``, from its column ``first`` on, rounded to out's type."""
    rows, cols = x.shape
    launch_rows(
        _put_in_heads,
        rows,
        cols,
        x,
        out,
        rows,
        cols,
        x.stride(0),
        out.stride(0),
        FIRST=first,
        FROM=cols // heads,
        TO=out.shape[1] // heads,
        INTERPRETED=INTERPRETED,
    )


@triton.jit(do_not_specialize=["tokens"])
def _write_latents(
    x,
    rows,
    latent_scales,
    key_scales,
    slots,
    tokens,
    x_stride,
    VALUE_DIM: tl.constexpr,
    DIM: tl.constexpr,
    QUANTIZED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write some tokens' latents, or what is behind them. Grid: tokens, these two."""
    behind = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64) * SOME + tl.arange(0, SOME)
    column = tl.arange(0, BLOCK)
    width = tl.where(behind == 0, VALUE_DIM, DIM - VALUE_DIM)
    slot = tl.load(slots + token, mask=token < tokens, other=-1).to(tl.int64)
    used = slot >= 0
    inside = used[:, None] & (column < width)[None, :]
    at = (behind * VALUE_DIM + column)[None, :]
    y = tl.load(x + token[:, None] * x_stride + at, mask=inside, other=0.0)
    if QUANTIZED:
        y, scale = coded(y, INTERPRETED)
        if behind == 0:
            tl.store(latent_scales + slot, scale, mask=used)
        else:
            tl.store(key_scales + slot, scale, mask=used)
    y = cast(y, rows.dtype.element_ty, INTERPRETED)
    tl.store(rows + slot[:, None] * DIM + at, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _put_in_heads(
    x,
    out,
    rows,
    cols,
    x_stride,
    out_stride,
    FIRST: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < cols)
    y = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    to = column // FROM * TO + FIRST + column % FROM
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + to, y, mask=inside)
