"""Encoders of ggml's k-quants: blocks of 256 columns in sub-blocks with scales of their own.

A format says what codes stand for, and leaves to the encoder which are chosen. Here they come near
to weighted least squares. A sub-block is first looked at by itself
(:mod:`~penstock.quant.encode.fitting`). Then the block's unit and the integer scales are fitted to
the codes, and the codes to them, in turns.

Arrays have the columns of a sub-block first, ``[columns, sub-blocks, blocks]``.

How much an error counts is as in ggml's encoders where importance is given: a column's importance,
for Q4_K and Q5_K times the root of the square of the value and twice the block's mean square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.encode.fitting import (
    Sums,
    divided,
    error_of,
    half,
    least_squares,
    searched_middle,
    searched_range,
    total,
    whole,
)

_ROUNDS: Final = 2
"""How often scales and codes are fitted to each other. A third round gains less than 0.1 %."""


def encode_q4_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Eight sub-blocks; as :data:`~penstock.quant.formats.k_quants.Q4_K` decodes them."""
    fitted = _with_offsets(*_turned(blocks, importance, 8), 15)
    codes = _planes(fitted.codes, 32, 4)
    return np.concatenate([fitted.units, _six_bits(fitted), codes], axis=1)


def encode_q5_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Eight sub-blocks, likewise, with codes of 5 bits."""
    fitted = _with_offsets(*_turned(blocks, importance, 8), 31)
    high = _planes(fitted.codes >> np.uint8(4), 32, 1)
    low = _planes(fitted.codes & np.uint8(15), 32, 4)
    return np.concatenate([fitted.units, _six_bits(fitted), high, low], axis=1)


def encode_q6_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Sixteen sub-blocks without offsets."""
    fitted = _without_offsets(*_turned(blocks, importance, 16), 32)
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


def _with_offsets(x: F32, importance: F32 | None, top: int) -> _Fitted:
    """Values become ``d scale code - m offset``, with codes up to ``top``, and scales and offsets
    up to 63."""
    weights = _weights(x, importance)
    of_one, of_x = np.add.reduce(weights, axis=0), np.add.reduce(weights * x, axis=0)
    scale, offset = searched_range(x, weights, of_one, of_x, top)
    unit = half(scale.max(axis=0) / np.float32(63))
    less = half(offset.max(axis=0) / np.float32(63))
    scales = whole(divided(scale, unit), 0, 63)
    offsets = whole(divided(offset, less), 0, 63)
    best = np.full(unit.shape, np.inf, np.float32)
    kept: tuple[F32, ...] = (np.zeros_like(x), unit, less, scales, offsets)
    for turn in range(_ROUNDS + 1):
        step, taken = unit * scales, less * offsets
        codes = whole((x + taken) * divided(np.float32(1), step), 0, top)
        sums = Sums.of(codes, x, weights)
        error = total(error_of(step, taken, sums, of_one, of_x))
        better = error < best
        kept = _chosen(better, (codes, unit, less, scales, offsets), kept)
        best = np.where(better, error, best)
        if turn < _ROUNDS:
            unit, less = _fitted_units(unit, less, scales, offsets, sums, of_one, of_x)
            scales, offsets = _fitted_scales(unit, less, sums, of_one, of_x)
    codes, unit, less, scales, offsets = kept
    units = np.stack([unit, less], axis=1).astype(np.float16).view(np.uint8)
    return _Fitted(_back(codes), units, _bytes(scales), _bytes(offsets))


def _fitted_units(
    unit: F32, less: F32, scales: F32, offsets: F32, sums: Sums, of_one: F32, of_x: F32
) -> tuple[F32, F32]:
    """The units of blocks that fit codes and integer scales best."""
    a = total(scales * scales * sums.cc)
    b = total(scales * offsets * sums.c)
    c = total(offsets * offsets * of_one)
    p, q = total(scales * sums.cx), total(offsets * of_x)
    fit = divided(p * c - b * q, a * c - b * b)
    taken = divided(b * fit - q, c)
    alone = (taken <= 0) | (fit <= 0)
    fit, taken = np.where(alone, divided(p, a), fit), np.where(alone, np.float32(0), taken)
    fits = fit > 0
    return half(np.where(fits, fit, unit)), half(np.where(fits, taken, less))


def _fitted_scales(unit: F32, less: F32, sums: Sums, of_one: F32, of_x: F32) -> tuple[F32, F32]:
    """The integer scales of sub-blocks that fit codes best."""
    near = np.rint(divided(least_squares(sums, of_one, of_x)[0], unit))
    best = np.full(near.shape, np.inf, np.float32)
    scales = offsets = np.zeros_like(near)
    for aside in (-1, 0, 1):
        scale = np.clip(near + np.float32(aside), 0, 63)
        step = unit * scale
        offset = whole(divided(divided(step * sums.c - of_x, of_one), less), 0, 63)
        error = error_of(step, less * offset, sums, of_one, of_x)
        better = error < best
        scales, offsets = np.where(better, scale, scales), np.where(better, offset, offsets)
        best = np.where(better, error, best)
    return scales, offsets


def _weights(x: F32, importance: F32 | None) -> F32:
    """How much the squares of errors count where there are offsets."""
    squares = np.add.reduce(x * x, axis=0)
    weights: F32
    if importance is None:
        weights = np.abs(x) + np.sqrt(squares / np.float32(len(x)))
    else:
        mean = total(squares) / np.float32(len(x) * len(squares))
        weights = importance * np.sqrt(2 * mean + x * x)
    return weights


def _without_offsets(x: F32, importance: F32 | None, middle: int) -> _Fitted:
    """Values become ``d scale (code - middle)``, with scales from -128 to 127."""
    weights = x * x if importance is None else importance
    scale = searched_middle(x, weights, middle)
    largest = np.take_along_axis(scale, np.abs(scale).argmax(axis=0)[None], axis=0)[0]
    unit = half(largest / np.float32(-128))
    scales = whole(divided(scale, unit), -128, 127)
    least = np.full(unit.shape, np.inf, np.float32)
    kept: tuple[F32, ...] = (np.zeros_like(x), unit, scales)
    for turn in range(_ROUNDS + 1):
        step = unit * scales
        codes = whole(x * divided(np.float32(1), step), -middle, middle - 1)
        sums = Sums.of(codes, x, weights)
        error = total(step * (step * sums.cc - 2 * sums.cx))
        better = error < least
        kept = _chosen(better, (codes, unit, scales), kept)
        least = np.where(better, error, least)
        if turn < _ROUNDS:
            fit = divided(total(scales * sums.cx), total(scales * scales * sums.cc))
            unit = half(np.where(fit == 0, unit, fit))
            scales = whole(divided(divided(sums.cx, sums.cc), unit), -128, 127)
    codes, unit, scales = kept
    return _Fitted(
        _back(codes + np.float32(middle)),
        unit[:, None].astype(np.float16).view(np.uint8),
        np.ascontiguousarray(scales.T).astype(np.int8).view(np.uint8),
        np.empty((len(unit), 0), np.uint8),
    )


def _chosen(
    better: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    new: tuple[F32, ...],
    old: tuple[F32, ...],
) -> tuple[F32, ...]:
    if better.all():
        return new
    return tuple(np.where(better, a, b) for a, b in zip(new, old, strict=True))


def _turned(blocks: F32, importance: F32 | None, parts: int) -> tuple[F32, F32 | None]:
    """Arrays ``[n, 256]`` as ``[256 / parts, parts, n]``."""

    def turned(x: F32) -> F32:
        return np.ascontiguousarray(x.reshape(len(x), parts, -1).transpose(2, 1, 0))

    return turned(blocks), None if importance is None else turned(importance)


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
