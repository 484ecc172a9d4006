"""Embedding lookup."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.tiling import rows_at_once

_BLOCK = 1024
_ROWS = rows_at_once(1)


def embed(token_ids: Tensor, table: Tensor, out: Tensor) -> None:
    """Run ``plan.ops.Embed``: token_ids int32 ``[T]``, table ``[vocab, c]``, out ``[T, c]``."""
    rows, cols = out.shape
    _embed[(triton.cdiv(rows, _ROWS), triton.cdiv(cols, _BLOCK))](
        token_ids,
        table,
        out,
        rows,
        cols,
        table.stride(0),
        out.stride(0),
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["rows"])
def _embed(
    token_ids,
    table,
    out,
    rows,
    cols,
    table_stride,
    out_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < cols)[None, :]
    token = tl.load(token_ids + row, mask=row < rows, other=0).to(tl.int64)
    values = tl.load(table + token[:, None] * table_stride + column[None, :], mask=inside)
    tl.store(out + row[:, None] * out_stride + column[None, :], values.to(tl.float32), mask=inside)
