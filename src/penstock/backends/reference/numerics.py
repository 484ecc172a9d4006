"""The mathematics of each op in NumPy, written to be read. float32 throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.models.spec import Activation, ClampedSwiglu, Gating
from penstock.quant import BlockTensor, GridTensor, GroupTensor, transform_rows

F32 = NDArray[np.float32]

LEAST_MAGNITUDE = np.float32(1e-30)
"""Rows of activations that are all smaller count as zero: the reciprocal stays finite."""

BLOCK_GROUP: Final = 32
"""Columns of x that are rounded together for products of weights in blocks."""

_WHOLE_SUM: Final = 8192
"""Terms that ``np.einsum`` sums without a cut: the elements of NumPy's buffer, by default."""

_PIECE: Final = 64
"""Tokens of a context whose weighted values are summed at once."""


def as_bfloat16(x: F32) -> F32:
    """``x`` rounded to bfloat16 (nearest even), still stored as float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def rms_norm(x: F32, weight: F32 | None, eps: float) -> F32:
    """Return the RMS norm over the last axis: ``x / sqrt(mean(x**2) + eps) * weight``."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    normed = x / np.sqrt(mean + np.float32(eps))
    return (normed if weight is None else normed * weight).astype(np.float32)


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


def layer_norm(x: F32, weight: F32 | None, bias: F32 | None, eps: float) -> F32:
    """Return the layer norm over the last axis: ``(x - mean) / sqrt(variance + eps) * weight +
    bias``."""
    centered = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centered), axis=-1, keepdims=True, dtype=np.float32)
    normed = centered / np.sqrt(variance + np.float32(eps))
    if weight is not None:
        normed = normed * weight
    return (normed if bias is None else normed + bias).astype(np.float32)


def soft_cap(x: F32, cap: float) -> F32:
    result: F32 = np.float32(cap) * np.tanh(x / np.float32(cap))
    return result


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


def activate(x: F32, kind: Activation) -> F32:
    if kind == "identity":
        return x
    if kind == "silu":
        factor = 1.0 / (1.0 + np.exp(-x))
    elif kind == "gelu_tanh":
        factor = 0.5 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    elif kind == "sigmoid":
        return (1.0 / (1.0 + np.exp(-x))).astype(np.float32)
    elif kind in ("relu", "relu2"):
        positive = np.where(x < 0, np.float32(0), x)
        return (positive * positive if kind == "relu2" else positive).astype(np.float32)
    else:
        erf = np.vectorize(math.erf, otypes=[np.float32])
        factor = 0.5 * (1.0 + erf(x / math.sqrt(2.0)))
    return (x * factor).astype(np.float32)


def gated(gate: F32, up: F32, kind: Gating) -> F32:
    """``activation(gate) * up``, or what :class:`~penstock.models.spec.ClampedSwiglu` says."""
    if not isinstance(kind, ClampedSwiglu):
        return activate(gate, kind) * up
    limit, alpha = np.float32(kind.limit), np.float32(kind.alpha)
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray((u + np.float32(1)) * (g * sigmoid(alpha * g)), np.float32)


def sigmoid(x: F32) -> F32:
    result: F32 = np.float32(1) / (np.float32(1) + np.exp(-x).astype(np.float32))
    return result


def rotate(x: F32, cos: F32, sin: F32, interleaved: bool = False) -> F32:
    """Rotary embedding of the first ``dim`` components, in halves or as neighbours.

    x ``[T, heads, head_dim]``; cos and sin ``[T, dim / 2]`` with ``dim <= head_dim``.
    """
    half = cos.shape[1]
    c, s = cos[:, None, :], sin[:, None, :]
    turned = x.copy()
    places = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    first, second = (x[..., place] for place in places)
    turned[..., places[0]] = first * c - second * s
    turned[..., places[1]] = second * c + first * s
    return turned


def attend(
    q: F32,
    keys: F32,
    values: F32,
    positions: NDArray[np.int32],
    scale: float,
    window: int | None,
    softcap: float | None = None,
    slopes: Sequence[float] | None = None,
    sinks: F32 | None = None,
    chunk: int | None = None,
    slope_factor: float | None = None,
) -> F32:
    """Causal attention of one sequence, as :class:`penstock.plan.ops.Attention` defines it.

    q ``[tokens, heads, d]`` at ``positions``; keys ``[context, kv_heads, d]`` and values
    ``[context, kv_heads, e]`` from position 0; slopes and sinks, where there are any, one for each
    head. Returns ``[tokens, heads, e]``.
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    heads = range(q.shape[1])  # one by one: no bit depends on how many there are
    scores = np.stack([product(q[:, h], keys[:, h]) for h in heads]) * np.float32(scale)
    if softcap is not None:
        scores = soft_cap(scores, softcap)
    distance: NDArray[np.int64] = positions.astype(np.int64)[:, None] - np.arange(len(keys))
    if slopes is not None and slope_factor is not None:
        each = np.asarray(slopes, np.float32)[:, None]
        places = (np.arange(len(keys), dtype=np.float32), positions.astype(np.float32))
        theirs, own = (as_bfloat16(each * as_bfloat16(place)) for place in places)
        scores = scores + np.float32(slope_factor) * (theirs[:, None, :] - own[:, :, None])
    elif slopes is not None:
        scores = scores - np.asarray(slopes, np.float32)[:, None, None] * distance.astype(
            np.float32
        )
    reach = len(keys) if window is None else window
    visible = (distance >= 0) & (distance < reach)
    if chunk is not None:
        visible &= distance <= positions.astype(np.int64)[:, None] % chunk
    scores = np.where(visible, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        most = np.maximum(most, sinks[:, None, None])
    weights = in_pieces(np.exp(scores - most))
    total = sum_of_pieces(weights)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - most)
    weights /= total
    # A masked slot may hold anything, NaN too: it must not be multiplied by its zero.
    seen = np.where(np.any(visible, axis=0)[:, None, None], values, 0.0)
    by_component = in_pieces(np.ascontiguousarray(seen.transpose(1, 2, 0), dtype=np.float32))
    return np.stack([product_of_pieces(weights[h], by_component[h]) for h in heads], axis=1)
