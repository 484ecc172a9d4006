"""Encoders of ggml's k-quants: blocks of 256 columns in sub-blocks with scales of their own.

A format says what codes stand for, and leaves to the encoder which are chosen. Here they come near
to weighted least squares. A sub-block is first looked at by itself
(:mod:`~penstock.quant.encode.fitting`). Then the block's ``d`` and the integer scales are fitted to
the codes, and the codes to them, in turns.

Arrays have the columns of a sub-block first, ``[columns, sub-blocks, blocks]``.

How much an error counts is as in ggml's encoders where importance is given: a column's importance,
but for Q6_K times the root of the square of the value and twice the block's mean square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.encode.fitting import (
    Sums,
    least_squares,
    round_and_clip,
    safe_divide,
    search_scale,
    search_scale_and_min,
    squared_error,
    sum_in_order,
    to_float16,
)

_ROUNDS: Final = 2
"""How often scales and codes are fitted to each other. A third round gains less than 0.1 %."""


def encode_q2_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Sixteen sub-blocks with scales and mins up to 15; as
    :data:`~penstock.quant.formats.k_quants.Q2_K` decodes them."""
    fitted = _with_mins(*_turned(blocks, importance, 16), 3, 15)
    both = fitted.scales | fitted.mins << np.uint8(4)
    return np.concatenate([both, _planes(fitted.codes, 32, 2), fitted.d_bytes], axis=1)


def encode_q3_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Sixteen sub-blocks without mins, and with scales of 6 bits."""
    x, importance = _turned(blocks, importance, 16)
    fitted = _without_mins(x, _weights(x, importance), 4, 32)
    high = _planes(fitted.codes >> np.uint8(2), 32, 1)
    low = _planes(fitted.codes & np.uint8(3), 32, 2)
    scales = fitted.scales + np.uint8(32)
    packed = [_planes(scales & np.uint8(15), 8, 4), _planes(scales >> np.uint8(4), 4, 2)]
    return np.concatenate([high, low, *packed, fitted.d_bytes], axis=1)


def encode_q4_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Eight sub-blocks; as :data:`~penstock.quant.formats.k_quants.Q4_K` decodes them."""
    fitted = _with_mins(*_turned(blocks, importance, 8), 15, 63)
    codes = _planes(fitted.codes, 32, 4)
    return np.concatenate([fitted.d_bytes, _six_bits(fitted), codes], axis=1)


def encode_q5_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Eight sub-blocks, likewise, with codes of 5 bits."""
    fitted = _with_mins(*_turned(blocks, importance, 8), 31, 63)
    high = _planes(fitted.codes >> np.uint8(4), 32, 1)
    low = _planes(fitted.codes & np.uint8(15), 32, 4)
    return np.concatenate([fitted.d_bytes, _six_bits(fitted), high, low], axis=1)


def encode_q6_k(blocks: F32, importance: F32 | None = None) -> Bytes:
    """Sixteen sub-blocks without mins."""
    x, importance = _turned(blocks, importance, 16)
    fitted = _without_mins(x, x * x if importance is None else importance, 32, 128)
    low = _planes(fitted.codes & np.uint8(15), 64, 4)
    high = _planes(fitted.codes >> np.uint8(4), 32, 2)
    return np.concatenate([low, high, fitted.scales, fitted.d_bytes], axis=1)


@dataclass(frozen=True)
class _Fitted:
    """What blocks are made of, block by block."""

    codes: Bytes
    """``[blocks, 256]``"""
    d_bytes: Bytes
    """The float16 ``d`` that multiplies scales and, where there are mins, their ``dmin``."""
    scales: Bytes
    """``[blocks, sub-blocks]``"""
    mins: Bytes


def _with_mins(x: F32, importance: F32 | None, max_code: int, max_scale: int) -> _Fitted:
    """Values become ``d scale code - dmin min``, with codes up to ``max_code``, and scales and mins
    up to ``max_scale``."""
    weights = _weights(x, importance)
    sum_w, sum_wx = np.add.reduce(weights, axis=0), np.add.reduce(weights * x, axis=0)
    scale, minimum = search_scale_and_min(x, weights, sum_w, sum_wx, max_code)
    d = to_float16(scale.max(axis=0) / np.float32(max_scale))
    dmin = to_float16(minimum.max(axis=0) / np.float32(max_scale))
    scales = round_and_clip(safe_divide(scale, d), 0, max_scale)
    mins = round_and_clip(safe_divide(minimum, dmin), 0, max_scale)
    best = np.full(d.shape, np.inf, np.float32)
    kept: tuple[F32, ...] = (np.zeros_like(x), d, dmin, scales, mins)
    for turn in range(_ROUNDS + 1):
        step, minimum = d * scales, dmin * mins
        codes = round_and_clip((x + minimum) * safe_divide(np.float32(1), step), 0, max_code)
        sums = Sums.of(codes, x, weights)
        error = sum_in_order(squared_error(step, minimum, sums, sum_w, sum_wx))
        better = error < best
        kept = _chosen(better, (codes, d, dmin, scales, mins), kept)
        best = np.where(better, error, best)
        if turn < _ROUNDS:
            d, dmin = _fitted_d(d, dmin, scales, mins, sums, sum_w, sum_wx)
            scales, mins = _fitted_scales(d, dmin, sums, sum_w, sum_wx, max_scale)
    codes, d, dmin, scales, mins = kept
    d_bytes = np.stack([d, dmin], axis=1).astype(np.float16).view(np.uint8)
    return _Fitted(_back(codes), d_bytes, _bytes(scales), _bytes(mins))


def _fitted_d(
    d: F32, dmin: F32, scales: F32, mins: F32, sums: Sums, sum_w: F32, sum_wx: F32
) -> tuple[F32, F32]:
    """The ``d`` and ``dmin`` of blocks that fit codes and integer scales best."""
    a = sum_in_order(scales * scales * sums.cc)
    b = sum_in_order(scales * mins * sums.c)
    c = sum_in_order(mins * mins * sum_w)
    p, q = sum_in_order(scales * sums.cx), sum_in_order(mins * sum_wx)
    fit = safe_divide(p * c - b * q, a * c - b * b)
    minimum = safe_divide(b * fit - q, c)
    without_min = (minimum <= 0) | (fit <= 0)
    fit, minimum = (
        np.where(without_min, safe_divide(p, a), fit),
        np.where(without_min, np.float32(0), minimum),
    )
    fits = fit > 0
    return to_float16(np.where(fits, fit, d)), to_float16(np.where(fits, minimum, dmin))


def _fitted_scales(
    d: F32, dmin: F32, sums: Sums, sum_w: F32, sum_wx: F32, max_scale: int
) -> tuple[F32, F32]:
    """The integer scales of sub-blocks that fit codes best."""
    near = np.rint(safe_divide(least_squares(sums, sum_w, sum_wx)[0], d))
    best = np.full(near.shape, np.inf, np.float32)
    scales = mins = np.zeros_like(near)
    for delta in (-1, 0, 1):
        scale = np.clip(near + np.float32(delta), 0, max_scale)
        step = d * scale
        minimum = round_and_clip(
            safe_divide(safe_divide(step * sums.c - sum_wx, sum_w), dmin), 0, max_scale
        )
        error = squared_error(step, dmin * minimum, sums, sum_w, sum_wx)
        better = error < best
        scales, mins = np.where(better, scale, scales), np.where(better, minimum, mins)
        best = np.where(better, error, best)
    return scales, mins


def _weights(x: F32, importance: F32 | None) -> F32:
    """How much the squares of errors count, but for Q6_K."""
    squares = np.add.reduce(x * x, axis=0)
    weights: F32
    if importance is None:
        weights = np.abs(x) + np.sqrt(squares / np.float32(len(x)))
    else:
        mean = sum_in_order(squares) / np.float32(len(x) * len(squares))
        weights = importance * np.sqrt(2 * mean + x * x)
    return weights


def _without_mins(x: F32, weights: F32, zero_point: int, scales_to: int) -> _Fitted:
    """Values become ``d scale (code - zero_point)``, with scales from ``-scales_to`` to
    ``scales_to - 1``."""
    scale = search_scale(x, weights, zero_point)
    largest = np.take_along_axis(scale, np.abs(scale).argmax(axis=0)[None], axis=0)[0]
    d = to_float16(largest / np.float32(-scales_to))
    scales = round_and_clip(safe_divide(scale, d), -scales_to, scales_to - 1)
    least = np.full(d.shape, np.inf, np.float32)
    kept: tuple[F32, ...] = (np.zeros_like(x), d, scales)
    for turn in range(_ROUNDS + 1):
        step = d * scales
        codes = round_and_clip(x * safe_divide(np.float32(1), step), -zero_point, zero_point - 1)
        sums = Sums.of(codes, x, weights)
        error = sum_in_order(step * (step * sums.cc - 2 * sums.cx))
        better = error < least
        kept = _chosen(better, (codes, d, scales), kept)
        least = np.where(better, error, least)
        if turn < _ROUNDS:
            fit = safe_divide(
                sum_in_order(scales * sums.cx), sum_in_order(scales * scales * sums.cc)
            )
            d = to_float16(np.where(fit == 0, d, fit))
            fit = safe_divide(safe_divide(sums.cx, sums.cc), d)
            scales = round_and_clip(fit, -scales_to, scales_to - 1)
    codes, d, scales = kept
    return _Fitted(
        _back(codes + np.float32(zero_point)),
        d[:, None].astype(np.float16).view(np.uint8),
        np.ascontiguousarray(scales.T).astype(np.int8).view(np.uint8),
        np.empty((len(d), 0), np.uint8),
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


def _bytes(round_and_clip: F32) -> Bytes:
    """Whole numbers with the last dimension first and the first one last."""
    return np.ascontiguousarray(round_and_clip.astype(np.uint8).T)


def _planes(codes: Bytes, together: int, width: int) -> Bytes:
    """The other direction of :func:`penstock.quant.formats.parts.planes`."""
    runs = codes.reshape(len(codes), -1, 8 // width, together)
    packed = np.zeros((len(codes), runs.shape[1], together), np.uint8)
    for index in range(8 // width):
        packed |= runs[:, :, index] << np.uint8(index * width)
    return packed.reshape(len(codes), -1)


def _six_bits(fitted: _Fitted) -> Bytes:
    """Eight scales and eight mins in 12 bytes."""
    scales, dmin = fitted.scales, fitted.mins
    first = np.concatenate([scales[:, :4], dmin[:, :4]], axis=1)
    high = np.concatenate([scales[:, 4:], dmin[:, 4:]], axis=1) >> np.uint8(4)
    low = (scales[:, 4:] & np.uint8(15)) | (dmin[:, 4:] & np.uint8(15)) << np.uint8(4)
    return np.concatenate([first | high << np.uint8(6), low], axis=1)
