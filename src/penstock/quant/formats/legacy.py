"""Blocks of 32 columns with one scale in float16, from ggml's first formats."""

from __future__ import annotations

import numpy as np

from penstock.quant.blocks import F32, Bytes
from penstock.quant.formats.parts import bits, half, halves, not_finite, of_files


def _decode_q8_0(blocks: Bytes) -> F32:
    """A scale, then 32 codes int8."""
    values: F32 = blocks[:, 2:].view(np.int8).astype(np.float32) * half(blocks[:, :2])
    return values


def _decode_q4_0(blocks: Bytes) -> F32:
    """A scale, then codes 0..15, which stand for themselves less 8."""
    codes = halves(blocks[:, 2:]).astype(np.float32)
    values: F32 = (codes - np.float32(8)) * half(blocks[:, :2])
    return values


def _decode_q4_1(blocks: Bytes) -> F32:
    """A scale and the value of code 0, then codes 0..15."""
    codes = halves(blocks[:, 4:]).astype(np.float32)
    values: F32 = codes * half(blocks[:, :2]) + half(blocks[:, 2:4])
    return values


def _decode_q5_0(blocks: Bytes) -> F32:
    """A scale, the highest bits of codes 0..31, a bit for each column, and their low four. Codes
    stand for themselves less 16."""
    codes = halves(blocks[:, 6:]) | bits(blocks[:, 2:6]) << np.uint8(4)
    values: F32 = (codes.astype(np.float32) - np.float32(16)) * half(blocks[:, :2])
    return values


def _decode_q5_1(blocks: Bytes) -> F32:
    """A scale and the value of code 0, then codes 0..31 as those of Q5_0."""
    codes = halves(blocks[:, 8:]) | bits(blocks[:, 4:8]) << np.uint8(4)
    values: F32 = codes.astype(np.float32) * half(blocks[:, :2]) + half(blocks[:, 2:4])
    return values


Q4_0 = of_files("Q4_0", _decode_q4_0, not_finite(0))
Q4_1 = of_files("Q4_1", _decode_q4_1, not_finite(0, 2))
Q5_0 = of_files("Q5_0", _decode_q5_0, not_finite(0))
Q5_1 = of_files("Q5_1", _decode_q5_1, not_finite(0, 2))
Q8_0 = of_files("Q8_0", _decode_q8_0, not_finite(0))
