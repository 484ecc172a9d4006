"""Blocks of 32 columns with one scale in float16, from ggml's first formats."""

from __future__ import annotations

import numpy as np

from penstock.quant.blocks import F32, BlockFormat, Bytes
from penstock.quant.scheme import BlockScheme


def _decode_q8_0(blocks: Bytes) -> F32:
    """A float16 scale, then 32 codes int8."""
    values: F32 = blocks[:, 2:].view(np.int8).astype(np.float32) * half(blocks[:, :2])
    return values


def _decode_q4_0(blocks: Bytes) -> F32:
    """A float16 scale, then codes 0..15, which stand for themselves less 8: byte i has that of
    column i in its low bits, and that of column i + 16 in its high ones."""
    codes = blocks[:, 2:]
    unsigned = np.concatenate([codes & np.uint8(15), codes >> np.uint8(4)], axis=1)
    values: F32 = (unsigned.astype(np.float32) - np.float32(8)) * half(blocks[:, :2])
    return values


def half(two_bytes: Bytes) -> F32:
    """Float16 numbers of bytes ``[blocks, 2]``, widened, ``[blocks, 1]``."""
    return np.ascontiguousarray(two_bytes).view(np.float16).astype(np.float32)


Q4_0 = BlockFormat(BlockScheme("Q4_0", 32, 18), _decode_q4_0)
Q8_0 = BlockFormat(BlockScheme("Q8_0", 32, 34), _decode_q8_0)
