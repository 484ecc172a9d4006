"""Embedding lookup."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def embed(token_ids: Tensor, table: Tensor, out: Tensor) -> None:
    """``plan.ops.Embed``: token_ids int32 ``[T]``, table ``[vocabulary, c]``, out ``[T, c]``."""
    rows, cols = out.shape
    _embed[(rows, triton.cdiv(cols, _BLOCK))](
        token_ids, table, out, cols, table.stride(0), out.stride(0), BLOCK=_BLOCK, num_warps=4
    )


@triton.jit
def _embed(token_ids, table, out, cols, table_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    token = tl.load(token_ids + row).to(tl.int64)
    values = tl.load(table + token * table_stride + columns, mask=inside)
    tl.store(out + row * out_stride + columns, values.to(tl.float32), mask=inside)
