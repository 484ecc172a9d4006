"""Products of weights in codebooks of rows: a code is a place in 8 or 16 values of its row's own.

Codes lie in words of four planes (``packing.py``). A code's value is looked up by itself: the
threads of a warp have words of 8 neighbouring rows, whose tables are two lines of 128 bytes, so
that 16 columns a cycle are to be expected, where an H100's memory brings 29 in 4 bits and 39 in 3.
Making values of bytes by permutations in registers would take as many instructions. Neither has
been measured.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import multiply, seen


@triton.jit
def codebook_section(
    x, w, high, codebook, x_rows, w_rows, columns, few, first, last, k, P: tl.constexpr,
):  # fmt: skip
    """Return ``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    codebook ``[n, 2 ** P.bits]``, floats. 4 bits: w int16 ``[n, padded / 4]``. 3 bits: w uint8
    ``[n, padded / 4]`` has the two lower bits of four planes, high uint8 ``[n, padded / 8]`` the
    third one of eight.
    """
    ROWS: tl.constexpr = P.rows
    COLS: tl.constexpr = P.cols
    BITS: tl.constexpr = P.bits
    LOW: tl.constexpr = 4 if BITS == 4 else 2
    within = tl.arange(0, P.plane)
    tables = codebook + (columns.to(tl.int64) << BITS)
    sums = tl.zeros([COLS, ROWS], tl.float32)
    for at in tl.range(first, last, P.depth, num_stages=P.stages, loop_unroll_factor=P.unroll):
        if BITS == 3:
            bits = tl.load(high + (w_rows // 2)[:, None] + (at // 8 + within)[None, :])
            thirds = bits.to(tl.int32) << 2
        for piece in tl.static_range(P.depth // (4 * P.plane)):
            here = at + piece * 4 * P.plane
            words = tl.load(w + w_rows[:, None] + (here // 4 + within)[None, :]).to(tl.int32)
            for plane in tl.static_range(4):
                codes = (words >> (LOW * plane)) & ((1 << LOW) - 1)
                if BITS == 3:
                    codes = codes | ((thirds >> (4 * piece + plane)) & 4)
                a = tl.load(tables[:, None] + codes)
                ks = here + plane * P.plane + within
                rows = x + x_rows[:, None] + ks[None, :]
                b = tl.load(rows, mask=seen(few, ks, k, P.even), other=0)
                if a.dtype != b.dtype:
                    a, b = a.to(tl.float32), b.to(tl.float32)
                sums = multiply(a, b, sums, P.interpreted)
    return sums
