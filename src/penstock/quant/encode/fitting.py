"""Scales that fit the values of sub-blocks, with the least weighted squared error.

Arrays have the columns of a sub-block first, ``[columns, ...]``, so that sums over a sub-block are
sums of contiguous rows, added in their order. Every operation is rounded to float32: the native
encoders (``csrc/kernels/encode_blocks.h``) have the same ones in the same order, and the same bits.

The search is of the kind that ggml's encoders made known (``make_qkx3_quants`` and
``make_qx_quants`` in https://github.com/ggml-org/llama.cpp, ``ggml/src/ggml-quants.c``): a range is
divided into a few more or fewer steps than there are codes, values are rounded to these, and of all
such roundings the one is taken that has the least error at the scale and offset that fit it best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.quant.blocks import F32

_STEPS: Final = np.arange(-10, 11, dtype=np.float32) / np.float32(10)
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


def searched_range(x: F32, weights: F32, of_one: F32, of_x: F32, top: int) -> tuple[F32, F32]:
    """The scale, and what is taken off, of each sub-block by itself, with codes up to ``top``.
    ``of_one`` and ``of_x`` are the sums of weights, and of weighted values."""
    low = np.minimum(x.min(axis=0), np.float32(0))
    above = x - low
    span = above.max(axis=0)
    scale, offset = span / np.float32(top), -low
    best = np.full(span.shape, np.inf, np.float32)
    per_span = divided(np.float32(1), span)
    codes = np.empty_like(x)
    for more in _STEPS:
        np.multiply(above, _product(np.float32(top) + more, per_span), out=codes)
        np.rint(codes, out=codes)
        np.minimum(codes, np.float32(top), out=codes)
        sums = Sums.of(codes, x, weights)
        step, taken = least_squares(sums, of_one, of_x)
        error = error_of(step, taken, sums, of_one, of_x)
        better = (error < best) & (step > 0)
        scale, offset = np.where(better, step, scale), np.where(better, taken, offset)
        best = np.where(better, error, best)
    return scale, offset


def searched_middle(x: F32, weights: F32, middle: int) -> F32:
    """The scale of each sub-block by itself, of either sign, with codes from ``-middle`` to
    ``middle - 1`` and no offset."""
    top = np.float32(middle - 1)
    at = np.abs(x).argmax(axis=0)[None]
    per_largest = divided(np.float32(1), np.take_along_axis(x, at, axis=0)[0])
    scale, best = np.zeros_like(per_largest), np.zeros_like(per_largest)
    codes = np.empty_like(x)
    for more in _STEPS:
        np.multiply(x, _product(-np.float32(middle) - more, per_largest), out=codes)
        np.rint(codes, out=codes)
        np.clip(codes, -np.float32(middle), top, out=codes)
        sums = Sums.of(codes, x, weights)
        gain = divided(sums.cx * sums.cx, sums.cc)
        better = gain > best
        scale = np.where(better, divided(sums.cx, sums.cc), scale)
        best = np.where(better, gain, best)
    return scale


def least_squares(sums: Sums, of_one: F32, of_x: F32) -> tuple[F32, F32]:
    """The scale and what is taken off, nothing at least, that fit codes best."""
    apart = of_one * sums.cc - sums.c * sums.c
    step = divided(of_one * sums.cx - of_x * sums.c, apart)
    taken = divided(sums.c * sums.cx - sums.cc * of_x, apart)
    alone = taken <= 0
    return (
        np.where(alone, divided(sums.cx, sums.cc), step),
        np.where(alone, np.float32(0), taken),
    )


def error_of(step: F32, taken: F32, sums: Sums, of_one: F32, of_x: F32) -> F32:
    """The weighted squared error, less what no choice changes."""
    error: F32 = step * (step * sums.cc - 2 * (sums.cx + taken * sums.c))
    error += taken * (taken * of_one + 2 * of_x)
    return error


def total(x: F32) -> F32:
    """The sum over the first dimension, added in its order whatever the others are."""
    result: F32 = x[0].copy()
    for each in x[1:]:
        result += each
    return result


def divided(a: F32 | np.float32, b: F32) -> F32:
    """a / b; 0 where that is no number."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        result: F32 = a / b
    return finite(result)


def _product(a: np.float32, b: F32) -> F32:
    """a b; 0 where that is too large."""
    with np.errstate(over="ignore"):
        return finite(a * b)


def finite(x: F32) -> F32:
    """``x``, 0 where it is not finite."""
    return np.where(np.isfinite(x), x, np.float32(0))


def whole(x: F32, low: int, high: int) -> F32:
    """``x`` rounded and clipped, in place."""
    np.rint(x, out=x)
    return np.clip(x, np.float32(low), np.float32(high), out=x)


def half(x: F32) -> F32:
    """``x`` rounded to float16, widened again; a zero has no sign."""
    return x.astype(np.float16).astype(np.float32) + np.float32(0)
