"""Encoders of ggml's k-quants: blocks of 256 columns in sub-blocks with scales of their own.

A format says what codes stand for, and leaves to the encoder which are chosen. Here they come near
to weighted least squares. A sub-block is first looked at by itself: its range is divided into a
few more or fewer steps than there are codes, its values are rounded to these, and of all such
roundings the one is taken with the least error at the scale and offset that fit it best. Then the
block's unit and the integer scales are fitted to the codes, and the codes to them, in turns.

Arrays have the columns of a sub-block first, ``[columns, sub-blocks, blocks]``, so that sums over a
sub-block are sums of contiguous rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes

_ROUNDS: Final = 2
"""How often scales and codes are fitted to each other. A third round gains less than 0.1 %."""
_STEPS: Final = np.arange(-10, 11, dtype=np.float32) / np.float32(10)
"""What is added to the number of steps that a sub-block's range is divided into."""


def encode_q4_k(blocks: F32) -> Bytes:
    """Eight sub-blocks; as :data:`~penstock.quant.formats.k_quants.Q4_K` decodes them."""
    fitted = _with_offsets(_turned(blocks, 8), 15)
    codes = _planes(fitted.codes, 32, 4)
    return np.concatenate([fitted.units, _six_bits(fitted), codes], axis=1)


def encode_q5_k(blocks: F32) -> Bytes:
    """Eight sub-blocks, likewise, with codes of 5 bits."""
    fitted = _with_offsets(_turned(blocks, 8), 31)
    high = _planes(fitted.codes >> np.uint8(4), 32, 1)
    low = _planes(fitted.codes & np.uint8(15), 32, 4)
    return np.concatenate([fitted.units, _six_bits(fitted), high, low], axis=1)


def encode_q6_k(blocks: F32) -> Bytes:
    """Sixteen sub-blocks without offsets."""
    fitted = _without_offsets(_turned(blocks, 16), 32)
    low = _planes(fitted.codes & np.uint8(15), 64, 4)
    high = _planes(fitted.codes >> np.uint8(4), 32, 2)
    return np.concatenate([low, high, fitted.scales, fitted.units], axis=1)


@dataclass(frozen=True)
class _Fitted:
    """What blocks are made of, block by block."""

    codes: Bytes
    """``[blocks, 256]``"""
    units: Bytes
    """The float16 that multiplies scales and, where there are offsets, that of offsets."""
    scales: Bytes
    """``[blocks, sub-blocks]``"""
    offsets: Bytes


@dataclass(frozen=True)
class _Sums:
    """Weighted sums over the columns of sub-blocks, of codes c and values x."""

    c: F32
    cc: F32
    cx: F32

    @classmethod
    def of(cls, codes: F32, x: F32, weights: F32) -> _Sums:
        weighted = weights * codes
        products = weighted * codes
        c, cc = np.add.reduce(weighted, axis=0), np.add.reduce(products, axis=0)
        np.multiply(weighted, x, out=products)
        return cls(c, cc, np.add.reduce(products, axis=0))


def _with_offsets(x: F32, top: int) -> _Fitted:
    """Values become ``d scale code - m offset``, with codes up to ``top``, and scales and offsets
    up to 63."""
    weights = np.abs(x) + np.sqrt(np.mean(x * x, axis=0))
    of_one, of_x = weights.sum(axis=0), (weights * x).sum(axis=0)
    scale, offset = _searched(x, weights, of_one, of_x, top)
    unit, less = _half(scale.max(axis=0) / 63), _half(offset.max(axis=0) / 63)
    scales = _whole(_divided(scale, unit), 0, 63)
    offsets = _whole(_divided(offset, less), 0, 63)
    best = np.full(unit.shape, np.inf, np.float32)
    kept: tuple[F32, ...] = (np.zeros_like(x), unit, less, scales, offsets)
    for turn in range(_ROUNDS + 1):
        step, taken = unit * scales, less * offsets
        codes = _whole((x + taken) * _divided(np.float32(1), step), 0, top)
        sums = _Sums.of(codes, x, weights)
        error = _error(step, taken, sums, of_one, of_x).sum(axis=0)
        better = error < best
        kept = _chosen(better, (codes, unit, less, scales, offsets), kept)
        best = np.where(better, error, best)
        if turn < _ROUNDS:
            unit, less = _fitted_units(unit, less, scales, offsets, sums, of_one, of_x)
            scales, offsets = _fitted_scales(unit, less, sums, of_one, of_x)
    codes, unit, less, scales, offsets = kept
    units = np.stack([unit, less], axis=1).astype(np.float16).view(np.uint8)
    return _Fitted(_back(codes), units, _bytes(scales), _bytes(offsets))


def _searched(x: F32, weights: F32, of_one: F32, of_x: F32, top: int) -> tuple[F32, F32]:
    """The scale, and what is taken off, of each sub-block by itself."""
    low = np.minimum(x.min(axis=0), np.float32(0))
    above = x - low
    span = above.max(axis=0)
    scale, offset = span / np.float32(top), -low
    best = np.full(span.shape, np.inf, np.float32)
    per_span = _divided(np.float32(1), span)
    codes = np.empty_like(x)
    for more in _STEPS:
        np.multiply(above, (np.float32(top) + more) * per_span, out=codes)
        np.rint(codes, out=codes)
        np.minimum(codes, np.float32(top), out=codes)
        sums = _Sums.of(codes, x, weights)
        step, taken = _least_squares(sums, of_one, of_x)
        error = _error(step, taken, sums, of_one, of_x)
        better = (error < best) & (step > 0)
        scale, offset = np.where(better, step, scale), np.where(better, taken, offset)
        best = np.where(better, error, best)
    return scale, offset


def _least_squares(sums: _Sums, of_one: F32, of_x: F32) -> tuple[F32, F32]:
    """The scale and what is taken off, nothing at least, that fit codes best."""
    apart = of_one * sums.cc - sums.c * sums.c
    step = _divided(of_one * sums.cx - of_x * sums.c, apart)
    taken = _divided(sums.c * sums.cx - sums.cc * of_x, apart)
    alone = taken <= 0
    return (
        np.where(alone, _divided(sums.cx, sums.cc), step),
        np.where(alone, np.float32(0), taken),
    )


def _error(step: F32, taken: F32, sums: _Sums, of_one: F32, of_x: F32) -> F32:
    """The weighted squared error, less what no choice changes."""
    error: F32 = step * (step * sums.cc - 2 * (sums.cx + taken * sums.c))
    error += taken * (taken * of_one + 2 * of_x)
    return error


def _fitted_units(
    unit: F32, less: F32, scales: F32, offsets: F32, sums: _Sums, of_one: F32, of_x: F32
) -> tuple[F32, F32]:
    """The units of blocks that fit codes and integer scales best."""
    a = (scales * scales * sums.cc).sum(axis=0)
    b = (scales * offsets * sums.c).sum(axis=0)
    c = (offsets * offsets * of_one).sum(axis=0)
    p, q = (scales * sums.cx).sum(axis=0), (offsets * of_x).sum(axis=0)
    fit = _divided(p * c - b * q, a * c - b * b)
    taken = _divided(b * fit - q, c)
    alone = (taken <= 0) | (fit <= 0)
    fit, taken = np.where(alone, _divided(p, a), fit), np.where(alone, np.float32(0), taken)
    fits = fit > 0
    return _half(np.where(fits, fit, unit)), _half(np.where(fits, taken, less))


def _fitted_scales(unit: F32, less: F32, sums: _Sums, of_one: F32, of_x: F32) -> tuple[F32, F32]:
    """The integer scales of sub-blocks that fit codes best."""
    near = np.rint(_divided(_least_squares(sums, of_one, of_x)[0], unit))
    best = np.full(near.shape, np.inf, np.float32)
    scales = offsets = near
    for aside in (-1, 0, 1):
        each = np.clip(near + np.float32(aside), 0, 63)
        step = unit * each
        whole = _whole(_divided(_divided(step * sums.c - of_x, of_one), less), 0, 63)
        error = _error(step, less * whole, sums, of_one, of_x)
        better = error < best
        scales, offsets = np.where(better, each, scales), np.where(better, whole, offsets)
        best = np.where(better, error, best)
    return scales, offsets


def _without_offsets(x: F32, middle: int) -> _Fitted:
    """Values become ``d scale (code - middle)``, with scales from -128 to 127."""
    weights = x * x
    top = np.float32(middle - 1)
    at = np.abs(x).argmax(axis=0)[None]
    per_largest = _divided(np.float32(1), np.take_along_axis(x, at, axis=0)[0])
    scale, best = np.zeros_like(per_largest), np.zeros_like(per_largest)
    codes = np.empty_like(x)
    for more in _STEPS:
        with np.errstate(over="ignore", invalid="ignore"):  # values near float32's least
            np.multiply(x, (-np.float32(middle) - more) * per_largest, out=codes)
        np.rint(codes, out=codes)
        np.clip(codes, -np.float32(middle), top, out=codes)
        sums = _Sums.of(codes, x, weights)
        gain = _divided(sums.cx * sums.cx, sums.cc)
        better = gain > best
        scale = np.where(better, _divided(sums.cx, sums.cc), scale)
        best = np.where(better, gain, best)
    largest = np.take_along_axis(scale, np.abs(scale).argmax(axis=0)[None], axis=0)[0]
    unit = _half(largest / np.float32(-128))
    scales = _whole(_divided(scale, unit), -128, 127)
    least = np.full(unit.shape, np.inf, np.float32)
    kept: tuple[F32, ...] = (np.zeros_like(x), unit, scales)
    for turn in range(_ROUNDS + 1):
        step = unit * scales
        codes = _whole(x * _divided(np.float32(1), step), -middle, middle - 1)
        sums = _Sums.of(codes, x, weights)
        error = (step * (step * sums.cc - 2 * sums.cx)).sum(axis=0)
        better = error < least
        kept = _chosen(better, (codes, unit, scales), kept)
        least = np.where(better, error, least)
        if turn < _ROUNDS:
            fit = _divided((scales * sums.cx).sum(axis=0), (scales * scales * sums.cc).sum(axis=0))
            unit = _half(np.where(fit == 0, unit, fit))
            scales = _whole(_divided(_divided(sums.cx, sums.cc), unit), -128, 127)
    codes, unit, scales = kept
    return _Fitted(
        _back(codes + np.float32(middle)),
        unit[:, None].astype(np.float16).view(np.uint8),
        np.ascontiguousarray(scales.T).astype(np.int8).view(np.uint8),
        np.empty((len(unit), 0), np.uint8),
    )


def _divided(a: F32 | np.float32, b: F32) -> F32:
    """a / b; 0 where that is no number."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        result: F32 = a / b
    return np.where(np.isfinite(result), result, np.float32(0))


def _whole(x: F32, low: int, high: int) -> F32:
    np.rint(x, out=x)
    return np.clip(x, np.float32(low), np.float32(high), out=x)


def _half(x: F32) -> F32:
    """``x`` rounded to float16, widened again."""
    return x.astype(np.float16).astype(np.float32)


def _chosen(
    better: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    new: tuple[F32, ...],
    old: tuple[F32, ...],
) -> tuple[F32, ...]:
    if better.all():
        return new
    return tuple(np.where(better, a, b) for a, b in zip(new, old, strict=True))


def _turned(blocks: F32, parts: int) -> F32:
    """Blocks ``[n, 256]`` as ``[256 / parts, parts, n]``."""
    return np.ascontiguousarray(blocks.reshape(len(blocks), parts, -1).transpose(2, 1, 0))


def _back(codes: F32) -> Bytes:
    """The other way round."""
    return _bytes(codes).reshape(codes.shape[-1], -1)


def _bytes(whole: F32) -> Bytes:
    """Whole numbers with the last dimension first and the first one last."""
    return np.ascontiguousarray(whole.astype(np.uint8).T)


def _planes(codes: Bytes, together: int, width: int) -> Bytes:
    """The other direction of :func:`penstock.quant.formats.parts.planes`."""
    runs = codes.reshape(len(codes), -1, 8 // width, together)
    packed = np.zeros((len(codes), runs.shape[1], together), np.uint8)
    for index in range(8 // width):
        packed |= runs[:, :, index] << np.uint8(index * width)
    return packed.reshape(len(codes), -1)


def _six_bits(fitted: _Fitted) -> Bytes:
    """Eight scales and eight offsets in 12 bytes."""
    scales, less = fitted.scales, fitted.offsets
    first = np.concatenate([scales[:, :4], less[:, :4]], axis=1)
    high = np.concatenate([scales[:, 4:], less[:, 4:]], axis=1) >> np.uint8(4)
    low = (scales[:, 4:] & np.uint8(15)) | (less[:, 4:] & np.uint8(15)) << np.uint8(4)
    return np.concatenate([first | high << np.uint8(6), low], axis=1)
