"""Embedding lookup in a table in groups of columns (``packing.py``)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.tiling import rows_at_once
from penstock.backends.cuda.kernels.weights import Weights

_BLOCK = 512
_ROWS = rows_at_once(1)


def embed_groups(token_ids: Tensor, table: Weights, out: Tensor) -> None:
    """Run ``plan.ops.Embed``: token_ids int32 ``[T]``, table of vocab rows, out ``[T, c]``."""
    rows, cols = out.shape
    scales, marks = table.scales, table.marks
    assert scales is not None
    _embed_groups[(triton.cdiv(rows, _ROWS), triton.cdiv(cols, _BLOCK))](
        token_ids,
        table.w,
        scales,
        scales if marks is None else marks,
        out,
        rows,
        cols,
        table.w.stride(0),
        scales.stride(0),
        out.stride(0),
        BITS=table.bits,
        PLANE=0 if table.w.element_size() == 1 else table.plane,
        SIZE=table.size,
        WHOLE=table.whole,
        ZEROS=marks is not None,
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["rows"])
def _embed_groups(
    token_ids, w, scales, marks, out, rows, cols, w_stride, stride, out_stride,
    BITS: tl.constexpr,
    PLANE: tl.constexpr,
    SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    ZEROS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """``PLANE`` 0: codes are bytes, column by column. ``SIZE``: columns of a group."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (column < cols)
    token = tl.load(token_ids + row, mask=row < rows, other=0).to(tl.int64)[:, None]
    if PLANE == 0:
        code = tl.load(w + token * w_stride + column, mask=inside, other=0).to(tl.int32)
    else:
        UNIT: tl.constexpr = PLANE * 16 // BITS
        place = column // UNIT * PLANE + column % PLANE
        word = tl.load(w + token * w_stride + place, mask=inside, other=0).to(tl.int32)
        SIGN: tl.constexpr = 1 << (BITS - 1)
        code = (word >> (BITS * (column % UNIT // PLANE))) & (2 * SIGN - 1)
        code = (code ^ SIGN) - SIGN
    group = column * 0 if WHOLE else column // SIZE
    scale = tl.load(scales + group * stride + token, mask=inside, other=0)
    if ZEROS:
        four = tl.load(marks + group // 4 * stride + token, mask=inside, other=0)
        code -= (((four >> (8 * (group % 4))) & 255) ^ 128) - 128
    tl.store(out + row[:, None] * out_stride + column, code.to(tl.float32) * scale, mask=inside)
