"""Scales that fit the values of sub-blocks, with the least weighted squared error.

Arrays have the columns of a sub-block first, ``[columns, ...]``, so that sums over a sub-block are
sums of contiguous rows, added in their order. Every operation is rounded to float32: the native
encoders (``csrc/kernels/encode_blocks.h``) have the same ones in the same order, and the same bits.

The search is of the kind that ggml's encoders made known (``make_qkx3_quants`` and
``make_qx_quants`` in https://github.com/ggml-org/llama.cpp, ``ggml/src/ggml-quants.c``): a range is
divided into a few more or fewer steps than there are codes, values are rounded to these, and of all
such roundings the one is taken that has the least error at the scale and minimum that fit it best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.quant.blocks import F32

MAX_VALUE: Final = 65504.0
"""The largest magnitude that all formats can hold: scales and minimums are float16, and a scale is
at most as large as the largest value of its block."""

_DELTAS: Final = np.arange(-10, 11, dtype=np.float32) / np.float32(10)
"""What is added to the number of steps that a sub-block's range is divided into."""


@dataclass(frozen=True)
class Sums:
    """Weighted sums over the columns of sub-blocks, of codes c and values x."""

    c: F32
    cc: F32
    cx: F32

    @classmethod
    def of(cls, codes: F32, x: F32, weights: F32) -> Sums:
        weighted = weights * codes
        products = weighted * codes
        c, cc = np.add.reduce(weighted, axis=0), np.add.reduce(products, axis=0)
        np.multiply(weighted, x, out=products)
        return cls(c, cc, np.add.reduce(products, axis=0))


def search_scale_and_min(
    x: F32, weights: F32, sum_w: F32, sum_wx: F32, max_code: int
) -> tuple[F32, F32]:
    """The scale and the minimum of each sub-block by itself, for ``scale * code - minimum`` with
    codes up to ``max_code``. ``sum_w`` and ``sum_wx`` are the sums of weights, and of weighted
    values."""
    low = np.minimum(x.min(axis=0), np.float32(0))
    above = x - low
    span = above.max(axis=0)
    scale, minimum = span / np.float32(max_code), -low
    best = np.full(span.shape, np.inf, np.float32)
    inverse_span = safe_divide(np.float32(1), span)
    codes = np.empty_like(x)
    for delta in _DELTAS:
        np.multiply(above, _safe_multiply(np.float32(max_code) + delta, inverse_span), out=codes)
        np.rint(codes, out=codes)
        np.minimum(codes, np.float32(max_code), out=codes)
        sums = Sums.of(codes, x, weights)
        step, below = least_squares(sums, sum_w, sum_wx)
        error = squared_error(step, below, sums, sum_w, sum_wx)
        better = (error < best) & (step > 0)
        scale, minimum = np.where(better, step, scale), np.where(better, below, minimum)
        best = np.where(better, error, best)
    return scale, minimum


def search_scale(x: F32, weights: F32, zero_point: int) -> F32:
    """The scale of each sub-block by itself, of either sign, with codes from ``-zero_point`` to
    ``zero_point - 1`` and no minimum."""
    max_code = np.float32(zero_point - 1)
    at = np.abs(x).argmax(axis=0)[None]
    inverse_largest = safe_divide(np.float32(1), np.take_along_axis(x, at, axis=0)[0])
    scale, best = np.zeros_like(inverse_largest), np.zeros_like(inverse_largest)
    codes = np.empty_like(x)
    for delta in _DELTAS:
        np.multiply(x, _safe_multiply(-np.float32(zero_point) - delta, inverse_largest), out=codes)
        np.rint(codes, out=codes)
        np.clip(codes, -np.float32(zero_point), max_code, out=codes)
        sums = Sums.of(codes, x, weights)
        gain = safe_divide(sums.cx * sums.cx, sums.cc)
        better = gain > best
        scale = np.where(better, safe_divide(sums.cx, sums.cc), scale)
        best = np.where(better, gain, best)
    return scale


def least_squares(sums: Sums, sum_w: F32, sum_wx: F32) -> tuple[F32, F32]:
    """The scale and the minimum, 0 at least, that fit codes best."""
    determinant = sum_w * sums.cc - sums.c * sums.c
    step = safe_divide(sum_w * sums.cx - sum_wx * sums.c, determinant)
    minimum = safe_divide(sums.c * sums.cx - sums.cc * sum_wx, determinant)
    without_min = minimum <= 0
    return (
        np.where(without_min, safe_divide(sums.cx, sums.cc), step),
        np.where(without_min, np.float32(0), minimum),
    )


def squared_error(step: F32, minimum: F32, sums: Sums, sum_w: F32, sum_wx: F32) -> F32:
    """The weighted squared error, less what no choice changes."""
    error: F32 = step * (step * sums.cc - 2 * (sums.cx + minimum * sums.c))
    error += minimum * (minimum * sum_w + 2 * sum_wx)
    return error


def sum_in_order(x: F32) -> F32:
    """The sum over the first dimension, added in its order whatever the others are."""
    result: F32 = x[0].copy()
    for each in x[1:]:
        result += each
    return result


def safe_divide(a: F32 | np.float32, b: F32) -> F32:
    """a / b; 0 where that is no number."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        result: F32 = a / b
    return or_zero(result)


def _safe_multiply(a: np.float32, b: F32) -> F32:
    """a b; 0 where that is too large."""
    with np.errstate(over="ignore"):
        return or_zero(a * b)


def or_zero(x: F32) -> F32:
    """``x``, 0 where it is not finite."""
    return np.where(np.isfinite(x), x, np.float32(0))


def round_and_clip(x: F32, low: int, high: int) -> F32:
    """``x`` rounded and clipped, in place."""
    np.rint(x, out=x)
    return np.clip(x, np.float32(low), np.float32(high), out=x)


def to_float16(x: F32) -> F32:
    """``x`` rounded to float16, and clipped to what it holds, widened again; a zero has no sign.

    A minimum that fits values near the largest of float16 may itself be larger than that.
    """
    return np.clip(x, -MAX_VALUE, MAX_VALUE).astype(np.float16).astype(np.float32) + np.float32(0)
