"""Products of matrices, of floats and of quantized ones, whose sums have one order each."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quant import BlockTensor, GridTensor, GroupTensor, LatticeMatrix, transform_rows

F32 = NDArray[np.float32]

BLOCK_GROUP: Final = 32
"""Columns of x that are rounded together for products of weights in blocks."""
LEAST_MAGNITUDE: Final = np.float32(1e-30)
"""Rows of activations that are all smaller count as zero: the reciprocal stays finite."""
_WHOLE_SUM: Final = 8192
"""Terms that ``np.einsum`` sums without a cut: the elements of NumPy's buffer, by default."""
_PIECE: Final = 64
"""Tokens of a context whose weighted values are summed at once."""


def product(x: F32, w: F32) -> F32:
    """``x @ w.T`` in float32. x ``[rows, k]``, w ``[n, k]``; returns ``[rows, n]``.

    Each sum is taken by itself, in an order that depends on k alone: BLAS takes several at once,
    and other ways through them where there are fewer rows or columns. So does einsum where k is not
    the innermost axis in memory, as after ``x[:, order]``, and where k exceeds its buffer: then it
    cuts sums wherever the buffer ends, which depends on the rows before.
    """
    x, w = _along_rows(x), _along_rows(w)
    k = x.shape[1]
    if k <= _WHOLE_SUM:
        whole: F32 = np.einsum("rk,nk->rn", x, w)
        return whole
    sums = np.zeros((len(x), len(w)), np.float32)
    for first in range(0, k, _WHOLE_SUM):
        columns = slice(first, first + _WHOLE_SUM)
        sums += product(x[:, columns], w[:, columns])
    return sums


def _along_rows(x: F32) -> F32:
    """``x`` with each row in one stretch of memory."""
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


def in_pieces(x: F32) -> F32:
    """``x``, whose last axis is a context, with zeros behind it up to whole pieces of tokens."""
    fill = -x.shape[-1] % _PIECE
    if not fill:
        return x
    return np.concatenate([x, np.zeros((*x.shape[:-1], fill), np.float32)], axis=-1)


def product_of_pieces(x: F32, w: F32) -> F32:
    """:func:`product` over whole pieces of a context, whose sums are added first to last.

    A token's weights end in zeros where its chunk holds later tokens: those, and pieces that are
    all zeros, change no bit of its sums.
    """
    sums = product(x[:, :_PIECE], w[:, :_PIECE])
    for first in range(_PIECE, x.shape[1], _PIECE):
        columns = slice(first, first + _PIECE)
        sums += product(x[:, columns], w[:, columns])
    return sums


def sum_of_pieces(x: F32) -> F32:
    """The sums over the last axis, of length 1 then, as :func:`product_of_pieces` adds."""
    pieces = x.reshape(*x.shape[:-1], -1, _PIECE).sum(axis=-1)
    total: F32 = np.add.accumulate(pieces, axis=-1)[..., -1:]
    return total


def int_product(x: F32, w: GroupTensor) -> F32:
    """``x @ W.T`` in integers, as :class:`penstock.plan.ops.Linear` defines it.

    x ``[rows, k]``, w ``[n, k]``; returns ``[rows, n]``.
    """
    x = x if w.order is None else x[:, w.order]
    k = x.shape[1]
    size = w.scheme.group_size or k
    w_points = w.points()
    out = np.zeros((len(x), len(w.codes)), np.float32)
    for g, first in enumerate(range(0, k, size)):
        columns = slice(first, min(first + size, k))
        codes, scales = quantize_rows(x[:, columns])
        # float64 holds every sum of products of bytes exactly, and multiplies faster than integers.
        dots = codes.astype(np.float64) @ w_points[:, columns].T.astype(np.float64)
        out += (scales * w.scales[:, g]) * dots.astype(np.float32)
    return out


def grid_product(x: F32, w: GridTensor) -> F32:
    """``x @ W.T`` with W on its grid, as :class:`penstock.plan.ops.Linear` defines it.

    x ``[rows, k]``, w ``[n, k]``, transformed or not; returns ``[rows, n]``.
    """
    codes, scales = quantize_whole_rows(transform_rows(x) if w.transformed else x)
    dots = codes.astype(np.float64) @ w.points().T.astype(np.float64)
    result: F32 = dots.astype(np.float32) * (scales * w.scales)
    return result


def points_on_grid(x: F32, w: GridTensor) -> F32:
    """``x @ W.T`` of float x and W on its grid, as :class:`penstock.plan.ops.Linear` defines it.

    x ``[rows, k]``, w ``[n, k]``; returns ``[rows, n]``.
    """
    return product(x, w.points().astype(np.float32)) * w.scales


def points_by_group(x: F32, w: GroupTensor) -> F32:
    """``x @ W.T`` of float x and W in groups, as :class:`penstock.plan.ops.Linear` defines it.

    x ``[rows, k]``, w ``[n, k]``; returns ``[rows, n]``.
    """
    x = x if w.order is None else x[:, w.order]
    k = x.shape[1]
    size = w.scheme.group_size or k
    w_points = w.points().astype(np.float32)
    out = np.zeros((len(x), len(w.codes)), np.float32)
    for g, first in enumerate(range(0, k, size)):
        columns = slice(first, min(first + size, k))
        out += w.scales[:, g] * product(x[:, columns], w_points[:, columns])
    return out


def block_product(x: F32, w: BlockTensor) -> F32:
    """``x @ W.T`` of rounded x and W in blocks, as :class:`penstock.plan.ops.Linear` defines it.

    x ``[rows, k]``, w ``[n, k]``; returns ``[rows, n]``. A group's scale and least value are in its
    values already, which the sum of their products with codes tells from them by rounding alone.
    """
    values = w.dequantize().astype(np.float64)
    out = np.zeros((len(x), len(values)), np.float32)
    for first in range(0, x.shape[1], BLOCK_GROUP):
        columns = slice(first, first + BLOCK_GROUP)
        codes, scales = quantize_rows(x[:, columns])
        out += scales * (codes.astype(np.float64) @ values[:, columns].T).astype(np.float32)
    return out


def lattice_product(x: F32, w: LatticeMatrix) -> F32:
    """``x @ W.T`` of float x and W of lattice points, as :class:`penstock.plan.ops.Linear` defines
    it.

    x ``[rows, k]``, w ``[n, k]``; returns ``[rows, n]``.
    """
    sums = product(w.turn_of_columns.forward(x), w.points()[:, : w.columns])
    out = w.turn_of_rows.back(sums * w.scale)
    return out if w.kept is None else out[:, w.kept]


def quantize_whole_rows(x: F32) -> tuple[NDArray[np.int8], F32]:
    """Activations ``[rows, k]`` to int8 codes and a scale a row, ``[rows, 1]``."""
    most = np.abs(x).max(axis=1, keepdims=True)
    finite = np.isfinite(most)
    nil = ~(most >= LEAST_MAGNITUDE) | ~finite
    scales = np.where(nil, np.float32(0), most / np.float32(127))
    scales = np.where(finite, scales, np.float32(np.nan)).astype(np.float32)
    by = np.where(nil, np.float32(0), np.float32(127) / np.where(nil, np.float32(1), most))
    codes = np.rint(np.where(nil, np.float32(0), x) * by)
    return np.clip(codes, -127, 127).astype(np.int8), scales


def quantize_rows(x: F32) -> tuple[NDArray[np.int8], F32]:
    """One group of activations ``[rows, size]`` to int8 codes and a scale ``[rows, 1]``."""
    most = np.abs(x).max(axis=1, keepdims=True)
    scales = (np.where(np.isfinite(most), most, np.nan) / np.float32(127)).astype(np.float32)
    usable = scales > 0
    codes = np.rint(x / np.where(usable, scales, np.float32(1)))
    return np.where(usable, np.clip(codes, -127, 127), 0).astype(np.int8), scales
