"""Encoders of blocks of 32 columns with one scale in float16, with the bits of ggml's own."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.quant.blocks import F32, Bytes

_BELOW_HALF: Final = np.float32(np.nextafter(np.float32(0.5), np.float32(0)))
"""Added away from zero before a cut, this rounds halves away from zero, and only halves."""


def encode_q8_0(blocks: F32) -> Bytes:
    """The largest magnitude becomes 127; halves are rounded away from zero."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    codes = blocks * _inverse(scale)
    codes += np.copysign(_BELOW_HALF, codes)
    return np.concatenate([_half(scale), np.trunc(codes).astype(np.int8).view(np.uint8)], axis=1)


def encode_q4_0(blocks: F32) -> Bytes:
    """The value of the largest magnitude becomes code 0, which stands for -8."""
    scale, codes = _signed(blocks, 8)
    return np.concatenate([_half(scale), _halves(codes)], axis=1)


def encode_q5_0(blocks: F32) -> Bytes:
    """The value of the largest magnitude becomes code 0, which stands for -16."""
    scale, codes = _signed(blocks, 16)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([_half(scale), high, _halves(codes & np.uint8(15))], axis=1)


def encode_q5_1(blocks: F32) -> Bytes:
    """The least value becomes code 0, and the largest code 31."""
    least = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - least) / np.float32(31)
    codes = np.trunc((blocks - least) * _inverse(scale) + np.float32(0.5)).astype(np.uint8)
    codes = codes.clip(0, 31)
    high = np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")
    return np.concatenate([_half(scale), _half(least), high, _halves(codes & np.uint8(15))], axis=1)


def _signed(blocks: F32, least: int) -> tuple[F32, Bytes]:
    """Scales, and codes from 0 to ``2 least - 1``, which stand for themselves less ``least``."""
    at = np.abs(blocks).argmax(axis=1)[:, None]
    scale: F32 = np.take_along_axis(blocks, at, axis=1) / np.float32(-least)
    codes = np.trunc(blocks * _inverse(scale) + np.float32(least + 0.5))
    return scale, np.minimum(codes, np.float32(2 * least - 1)).astype(np.uint8)


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
