"""Embedding lookup in a table in blocks (``block_layouts.py``)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.block_operands import (
    code_of,
    least_of,
    point_of,
    scale_of,
)
from penstock.backends.cuda.kernels.tiling import rows_at_once
from penstock.backends.cuda.kernels.weights import Weights

_BLOCK = 512
_ROWS = rows_at_once(1)


def embed_blocks(token_ids: Tensor, table: Weights, out: Tensor) -> None:
    """Run ``plan.ops.Embed``: token_ids int32 ``[T]``, table of vocab rows, out ``[T, c]``."""
    layout, w = table.layout, table.w
    assert layout is not None
    rows, cols = out.shape
    _embed_blocks[(triton.cdiv(rows, _ROWS), triton.cdiv(cols, _BLOCK))](
        token_ids,
        w,
        w if table.high is None else table.high,
        w if table.scales is None else table.scales,
        table.marks,
        out,
        rows,
        cols,
        w.stride(0),
        len(w),
        out.stride(0),
        BITS=layout.low,
        PLANE=layout.plane,
        LAYOUT=layout,
        ROWS=_ROWS,
        BLOCK=_BLOCK,
        num_warps=4,
        # Values are rounded as the format's decoder rounds them.
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["rows"])
def _embed_blocks(
    token_ids, w, high, units, marks, out, rows, cols, w_stride, stride, out_stride,
    BITS: tl.constexpr,
    PLANE: tl.constexpr,
    LAYOUT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Arguments are those of ``block_section``."""
    PLANES: tl.constexpr = 2 if BITS == 8 else 4
    UNIT: tl.constexpr = PLANES * PLANE
    HIGH: tl.constexpr = LAYOUT.high
    MARKS: tl.constexpr = LAYOUT.marks
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (column < cols)
    token = tl.load(token_ids + row, mask=row < rows, other=0).to(tl.int64)[:, None]
    place = column // UNIT * PLANE + column % PLANE
    words = tl.load(w + token * w_stride + place, mask=inside, other=0)
    index = column % UNIT // PLANE
    code = code_of(words, words, index, BITS, 0)
    if HIGH > 0:
        LINE: tl.constexpr = 8 // HIGH * PLANE
        line = (column // LINE).to(tl.int64)
        there = (line * stride + token) * PLANE + column % PLANE
        bits = tl.load(high + there, mask=inside, other=0).to(tl.int32)
        code |= ((bits >> (HIGH * (column % LINE // PLANE))) & ((1 << HIGH) - 1)) << BITS
    unit = token.to(tl.int32)
    if LAYOUT.levels:
        unit = tl.load(units + column // 256 * stride + token, mask=inside, other=0)
    index = column % 128 // PLANE
    first = column // 128 * MARKS
    LEAST: tl.constexpr = LAYOUT.least
    if LAYOUT.scales == "halves":
        EACH: tl.constexpr = 1 if LEAST else 2
        four = tl.load(marks + (first + index // EACH) * stride + token, mask=inside, other=0)
        scale = scale_of(four, unit, index % EACH, LAYOUT)
        if LEAST:
            least = least_of(four, unit, 1, LAYOUT)
    elif LAYOUT.scales == "singles":
        four = tl.load(
            marks + (first + index * PLANE // LAYOUT.shared) * stride + token,
            mask=inside,
            other=0,
        )
        scale = scale_of(four, unit, 0, LAYOUT)
    else:
        four = tl.load(marks + (first + index // 4) * stride + token, mask=inside, other=0)
        scale = scale_of(four, unit, index % 4, LAYOUT)
        if LEAST:
            if LAYOUT.scales == "levels":
                at = first + 128 // PLANE // 4 + index // 4
                four = tl.load(marks + at * stride + token, mask=inside, other=0)
            least = least_of(four, unit, index % 4, LAYOUT)
    value = scale * point_of(code, LAYOUT).to(tl.float32)
    if LEAST:
        value += least
    tl.store(out + row[:, None] * out_stride + column, value, mask=inside)
