"""Blocks of 256 columns in sub-blocks of 16 or 32, whose scales are integers that the block's own
scale multiplies: ggml's k-quants."""

from __future__ import annotations

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.formats.parts import half, not_finite, of_files, planes

_COLUMNS = 256


def _decode_q2_k(blocks: Bytes) -> F32:
    """Each sub-block of 16 has a byte, with its scale in the low bits and what is taken off its
    values in the high ones; codes 0..3; the units of scales and of what is taken off."""
    parts = blocks[:, :16]
    scales = half(blocks[:, 80:82]) * (parts & np.uint8(15)).astype(np.float32)
    less = half(blocks[:, 82:84]) * (parts >> np.uint8(4)).astype(np.float32)
    return _of_parts(planes(blocks[:, 16:80], 32, 2).astype(np.float32), scales, less)


def _decode_q3_k(blocks: Bytes) -> F32:
    """A bit for each column, whose value is 4 less where it is 0; the low two bits of values; the
    scales of sub-blocks of 16, 6 bits each, which stand for themselves less 32; their unit."""
    packed = blocks[:, 96:108]
    scales = planes(packed[:, :8], 8, 4) | planes(packed[:, 8:], 4, 2) << np.uint8(4)
    units = half(blocks[:, 108:110]) * (scales.astype(np.float32) - np.float32(32))
    high = planes(blocks[:, :32], 32, 1).astype(np.float32)
    low = planes(blocks[:, 32:96], 32, 2).astype(np.float32)
    return _of_parts(low - np.float32(4) * (np.float32(1) - high), units)


def _decode_q4_k(blocks: Bytes) -> F32:
    """The unit of scales and that of what is taken off; :func:`_six_bits` of each sub-block of 32;
    codes 0..15."""
    scales, less = _scales(blocks)
    return _of_parts(planes(blocks[:, 16:], 32, 4).astype(np.float32), scales, less)


def _decode_q5_k(blocks: Bytes) -> F32:
    """As Q4_K, with a fifth bit of each code before the low four."""
    scales, less = _scales(blocks)
    codes = planes(blocks[:, 48:], 32, 4) | planes(blocks[:, 16:48], 32, 1) << np.uint8(4)
    return _of_parts(codes.astype(np.float32), scales, less)


def _decode_q6_k(blocks: Bytes) -> F32:
    """The low four bits of codes 0..63, which stand for themselves less 32; their high two; scales
    int8 of sub-blocks of 16; their unit."""
    codes = planes(blocks[:, :128], 64, 4) | planes(blocks[:, 128:192], 32, 2) << np.uint8(4)
    scales = half(blocks[:, 208:210]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _of_parts(codes.astype(np.float32) - np.float32(32), scales)


def _scales(blocks: Bytes) -> tuple[F32, F32]:
    """What multiplies and what is taken off each of eight sub-blocks, of Q4_K and Q5_K."""
    scales, less = _six_bits(blocks[:, 4:16])
    return half(blocks[:, :2]) * scales, half(blocks[:, 2:4]) * less


def _six_bits(packed: Bytes) -> tuple[F32, F32]:
    """Eight scales and eight numbers of what is taken off, of 6 bits each, in 12 bytes.

    The low bits of bytes 0 to 3 are the first four scales, those of bytes 4 to 7 the first four of
    the others. Of the last four, bytes 8 to 11 have the low four bits, of scales in their own low
    ones, and bytes 0 to 7 the high two.
    """
    first, low = packed[:, :8], packed[:, 8:]
    high = (first >> np.uint8(2)) & np.uint8(0x30)
    first = first & np.uint8(0x3F)
    scales = np.concatenate([first[:, :4], low & np.uint8(15) | high[:, :4]], axis=1)
    less = np.concatenate([first[:, 4:], low >> np.uint8(4) | high[:, 4:]], axis=1)
    return scales.astype(np.float32), less.astype(np.float32)


def _of_parts(codes: F32, scales: F32, less: F32 | None = None) -> F32:
    """Codes ``[blocks, 256]`` times the scales ``[blocks, parts]`` of their sub-blocks, and
    ``less`` taken off."""
    parts = codes.reshape(*scales.shape, _COLUMNS // scales.shape[1])
    parts *= scales[:, :, None]
    if less is not None:
        parts -= less[:, :, None]
    return parts.reshape(len(codes), _COLUMNS)


Q2_K = of_files("Q2_K", _decode_q2_k, not_finite(80, 82))
Q3_K = of_files("Q3_K", _decode_q3_k, not_finite(108))
Q4_K = of_files("Q4_K", _decode_q4_k, not_finite(0, 2))
Q5_K = of_files("Q5_K", _decode_q5_k, not_finite(0, 2))
Q6_K = of_files("Q6_K", _decode_q6_k, not_finite(208))
