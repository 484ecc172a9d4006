"""Rows turned for products with lattice points, and their outputs turned back.

A block of a row, written as a matrix X, becomes ``left @ X @ right.T`` (``penstock.quant.turn``):
two products of matrices for tensor cores. A program has 16 rows of ``left``, of which it needs no
other's, and some rows of ``right``; what it makes of the first product it multiplies at once, some
columns at a time. So a single row of 16,384 columns, 128 by 128, is shared by 8 programs.

Entries of both factors are 1 and -1, so the first product is of numbers that 16 bits hold, where x
has 16 bits, and the second one is of float32 as ``operands.multiply`` has it, to 22 bits. For a row
of 4,096 columns these are ``2 * 4096 * (64 + 64)`` operations, three times as many where float32 is
multiplied: of 2,048 rows 4 to 6 GFLOP, at an H100's 495 TFLOP/s in TF32 some 10 us, beside the 70
of a product with a matrix of 4,096 rows. Nothing of that has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.lattice_linear import PLANE
from penstock.backends.cuda.kernels.operands import multiply
from penstock.backends.cuda.kernels.runtime import INTERPRETED

UNIT: Final = 8 * PLANE
"""Columns whose order :func:`turn_rows` changes."""
_LEFT: Final = 16
"""Rows of ``left`` that a program has: the fewest of a product by tensor cores."""
_COLS: Final = 128
"""Rows of ``right`` that it has at most."""
_DEPTH: Final = 64
"""Terms of a sum that are added at once, at most."""


@dataclass(frozen=True)
class DeviceTurn:
    """A :class:`~penstock.quant.turn.Turn` on the device."""

    signs: Tensor
    """int8 ``[size]``."""
    left: Tensor
    """int8 ``[L, L]``."""
    right: Tensor
    """int8 ``[R, R]``: of a turn of outputs, which is undone, transposed."""
    factor: float
    """What products are multiplied by: 1 over the root of ``L * R``."""

    @property
    def size(self) -> int:
        return len(self.signs)


def turn_rows(x: Tensor, turn: DeviceTurn, out: Tensor) -> None:
    """Turn rows x ``[rows, size]``, elements of a row adjacent, to out ``[rows, padded]`` of a
    type of their own, contiguous and with a multiple of ``UNIT`` columns.

    Column ``c`` of a unit lies in the place ``c % 8 * PLANE + c // 8``, as products read it, and
    zeros where there is none.
    """
    _launch(x, turn, out, out, out, back=False, has_bias=False)


def turn_back(x: Tensor, turn: DeviceTurn, scale: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Undo a turn of ``scale * x``, x float32 ``[rows, size]``, and add bias float32 ``[size]``, to
    out ``[rows, size]``; elements of a row adjacent. scale float32 ``[1]``."""
    _launch(x, turn, scale, out if bias is None else bias, out, True, bias is not None)


def _launch(
    x: Tensor,
    turn: DeviceTurn,
    scale: Tensor,
    bias: Tensor,
    out: Tensor,
    back: bool,
    has_bias: bool,
) -> None:
    lefts, rights = len(turn.left), len(turn.right)
    cols = min(_COLS, _fitting(rights))
    blocks = turn.size // (lefts * rights)
    grid = (len(x), blocks * triton.cdiv(lefts, _LEFT), triton.cdiv(rights, cols))
    _turn[grid](
        x,
        turn.signs,
        turn.left,
        turn.right,
        scale,
        bias,
        out,
        turn.size,
        out.shape[1],
        lefts,
        rights,
        x.stride(0),
        out.stride(0),
        BACK=back,
        HAS_BIAS=has_bias,
        LEFT=_LEFT,
        COLS=cols,
        FACTOR=turn.factor,
        INNER=min(_DEPTH, _fitting(lefts)),
        DEPTH=min(_DEPTH, _fitting(rights)),
        PLANE=PLANE,
        INTERPRETED=INTERPRETED,
        num_warps=max(2, cols // 16),
        enable_fp_fusion=False,
    )


def _fitting(count: int) -> int:
    """The power of two, 16 at least, that holds so many."""
    return max(16, 1 << (count - 1).bit_length())


@triton.jit
def _turn(
    x, signs, left, right, scale, bias, out, size, padded, lefts, rights, x_stride, out_stride,
    BACK: tl.constexpr, HAS_BIAS: tl.constexpr, LEFT: tl.constexpr, COLS: tl.constexpr,
    FACTOR: tl.constexpr, INNER: tl.constexpr, DEPTH: tl.constexpr, PLANE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Grid: rows, rows of ``left`` of each block, rows of ``right``."""
    row = tl.program_id(0).to(tl.int64)
    lefts_tiles = tl.cdiv(lefts, LEFT)
    block = (tl.program_id(1) // lefts_tiles) * lefts * rights
    ls = (tl.program_id(1) % lefts_tiles) * LEFT + tl.arange(0, LEFT)
    ns = tl.program_id(2) * COLS + tl.arange(0, COLS)
    element: tl.constexpr = x.dtype.element_ty
    UNIT: tl.constexpr = 8 * PLANE
    if BACK:
        by = tl.load(scale)
    sums = tl.zeros([LEFT, COLS], tl.float32)
    for first in range(0, rights, DEPTH):
        rs = first + tl.arange(0, DEPTH)
        product = tl.zeros([LEFT, DEPTH], tl.float32)
        for at in range(0, lefts, INNER):
            js = at + tl.arange(0, INNER)
            there = (ls < lefts)[:, None] & (js < lefts)[None, :]
            a = tl.load(left + ls[:, None] * lefts + js[None, :], mask=there, other=0)
            inside = (rs < rights)[:, None] & (js < lefts)[None, :]
            places = block + js[None, :] * rights + rs[:, None]
            b = tl.load(x + row * x_stride + places, mask=inside, other=0)
            if BACK:
                b = b * by
            else:
                sign = tl.load(signs + places, mask=inside, other=1)
                b = (b.to(tl.float32) * sign.to(tl.float32)).to(element)
            a = a.to(tl.float32).to(element)  # whose numbers the interpreter knows
            product = multiply(a, b, product, INTERPRETED)
        there = (ns < rights)[:, None] & (rs < rights)[None, :]
        c = tl.load(right + ns[:, None] * rights + rs[None, :], mask=there, other=0)
        sums = multiply(product, c.to(tl.float32), sums, INTERPRETED)
    sums = sums * FACTOR
    columns = block + ls[:, None] * rights + ns[None, :]
    inside = (ls < lefts)[:, None] & (ns < rights)[None, :]
    places = columns
    if BACK:
        sums = sums * tl.load(signs + columns, mask=inside, other=1).to(tl.float32)
        if HAS_BIAS:
            sums += tl.load(bias + columns, mask=inside, other=0.0)
    else:
        places = columns // UNIT * UNIT + columns % 8 * PLANE + columns // 8 % PLANE
        if tl.program_id(1) + tl.program_id(2) == 0:
            rest = size + tl.arange(0, UNIT)
            empty = rest // UNIT * UNIT + rest % 8 * PLANE + rest // 8 % PLANE
            nothing = tl.zeros([UNIT], tl.float32).to(out.dtype.element_ty)
            tl.store(out + row * out_stride + empty, nothing, mask=rest < padded)
    rounded = cast(sums, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + places, rounded, mask=inside)
