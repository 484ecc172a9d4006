"""Encoders of blocks of 32 columns with one scale in float16.

Without importance they have the bits of ggml's reference. With it the scale of a block is searched
for (:mod:`~penstock.quant.encode.fitting`), but for Q8_0, where nothing is gained.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.encode.fitting import (
    round_and_clip,
    safe_divide,
    search_scale,
    search_scale_and_min,
    to_float16,
)

_BELOW_HALF: Final = np.float32(np.nextafter(np.float32(0.5), np.float32(0)))
"""Added away from zero before a cut, this rounds halves away from zero, and only halves."""


def encode_q8_0(blocks: F32, importance: F32 | None = None) -> Bytes:
    """The largest magnitude becomes 127; halves are rounded away from zero."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = blocks * _inverse(scale)
    codes += np.copysign(_BELOW_HALF, codes)
    return np.concatenate([_half(scale), np.trunc(codes).astype(np.int8).view(np.uint8)], axis=1)


def encode_q4_0(blocks: F32, importance: F32 | None = None) -> Bytes:
    """The value of the largest magnitude becomes code 0, which stands for -8."""
    scale, codes = _around(blocks, importance, 8)
    return np.concatenate([_half(scale), _halves(codes)], axis=1)


def encode_q4_1(blocks: F32, importance: F32 | None = None) -> Bytes:
    """The least value becomes code 0, and the largest code 15."""
    scale, least, codes = _above(blocks, importance, 15)
    return np.concatenate([_half(scale), _half(least), _halves(codes)], axis=1)


def encode_q5_0(blocks: F32, importance: F32 | None = None) -> Bytes:
    """The value of the largest magnitude becomes code 0, which stands for -16."""
    scale, codes = _around(blocks, importance, 16)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([_half(scale), high, _halves(codes & np.uint8(15))], axis=1)


def encode_q5_1(blocks: F32, importance: F32 | None = None) -> Bytes:
    """The least value becomes code 0, and the largest code 31."""
    scale, least, codes = _above(blocks, importance, 31)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([_half(scale), _half(least), high, _halves(codes & np.uint8(15))], axis=1)


def _around(blocks: F32, importance: F32 | None, zero_point: int) -> tuple[F32, Bytes]:
    """Scales, and codes from 0 to ``2 zero_point - 1``, which stand for themselves less
    ``zero_point``."""
    if importance is None:
        at = np.abs(blocks).argmax(axis=1)[:, None]
        scale: F32 = np.take_along_axis(blocks, at, axis=1) / np.float32(-zero_point)
        codes = np.trunc(blocks * _inverse(scale) + np.float32(zero_point + 0.5))
        return scale, np.minimum(codes, np.float32(2 * zero_point - 1)).astype(np.uint8)
    x, weights = _weighted(blocks, importance)
    scale = to_float16(search_scale(x, weights, zero_point))
    codes = round_and_clip(x * safe_divide(np.float32(1), scale), -zero_point, zero_point - 1)
    return scale[:, None], (codes + np.float32(zero_point)).T.astype(np.uint8)


def _above(blocks: F32, importance: F32 | None, max_code: int) -> tuple[F32, F32, Bytes]:
    """Scales, the values of code 0, and codes up to ``max_code``."""
    if importance is None:
        least: F32 = blocks.min(axis=1, keepdims=True) + np.float32(0)  # a zero without a sign
        span = blocks.max(axis=1, keepdims=True) - least
        scale: F32 = span / np.float32(max_code) + np.float32(0)
        codes = np.trunc((blocks - least) * _inverse(scale) + np.float32(0.5)).astype(np.uint8)
        return scale, least, codes.clip(0, max_code)
    x, weights = _weighted(blocks, importance)
    sum_w, sum_wx = np.add.reduce(weights, axis=0), np.add.reduce(weights * x, axis=0)
    scale, minimum = search_scale_and_min(x, weights, sum_w, sum_wx, max_code)
    scale, minimum = to_float16(scale), to_float16(minimum)
    codes = round_and_clip((x + minimum) * safe_divide(np.float32(1), scale), 0, max_code)
    return scale[:, None], np.float32(0) - minimum[:, None], codes.T.astype(np.uint8)


def _weighted(blocks: F32, importance: F32) -> tuple[F32, F32]:
    """Values and how much the squares of their errors count, ``[32, blocks]``: as in ggml's
    encoders, but of the mean square of a block where those take that of the row."""
    x = np.ascontiguousarray(blocks.T)
    mean = np.add.reduce(x * x, axis=0) / np.float32(len(x))
    return x, np.ascontiguousarray(importance.T) * np.sqrt(mean + x * x)


def _inverse(scale: F32) -> F32:
    """1 / scale; 0 where that is infinite, and the scale 0 in float16."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse: F32 = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _half(scale: F32) -> Bytes:
    """Numbers ``[blocks, 1]`` as the bytes of float16."""
    return scale.astype(np.float16).view(np.uint8)


def _halves(codes: Bytes) -> Bytes:
    """Codes of 4 bits ``[blocks, 32]``, those of the second half in the high bits."""
    return codes[:, :16] | codes[:, 16:] << np.uint8(4)
