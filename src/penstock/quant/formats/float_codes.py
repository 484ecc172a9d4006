"""Blocks of checkpoints whose codes are small floating-point numbers, or bitsandbytes' tables.

No file has these blocks: they are put together of codes and scales that checkpoints keep in tensors
apart (``weights/float_blocks.py``), so that a matrix is one array of bytes on its way to the
kernels. A scale in float32 is four bytes, little-endian.
"""

from __future__ import annotations

from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.quant.blocks import F32, BlockFormat, Bytes
from penstock.quant.scheme import BlockScheme

E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1's codes, whose highest bit is the sign."""
NF4_VALUES: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""bitsandbytes' NF4: quantiles of a normal distribution."""
FP4_VALUES: Final = tuple(
    sign * twelfths / 12 for sign in (1, -1) for twelfths in (0, 0.0625, 8, 12, 4, 6, 2, 3)
)
"""bitsandbytes' FP4, which is not E2M1."""


def e4m3() -> NDArray[np.float32]:
    """The values of all codes of E4M3."""
    codes = np.arange(256, dtype=np.uint8)
    values: NDArray[np.float32] = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return values


def e2m1() -> NDArray[np.float32]:
    """The values of all codes of E2M1."""
    return np.array([*E2M1, *(-x for x in E2M1)], np.float32)


def _decode_fp8(blocks: Bytes) -> F32:
    """A scale in float32, then codes in E4M3, a byte each."""
    values: F32 = e4m3()[blocks[:, 4:]] * _float32(blocks[:, :4])
    return values


def _decode_mxfp8(blocks: Bytes) -> F32:
    """A power of two plus 127, then 32 codes in E4M3."""
    exponent = blocks[:, :1].astype(np.int32) - 127
    values: F32 = e4m3()[blocks[:, 1:]] * np.ldexp(np.float32(1), exponent)
    return values


def _decode_nf4(blocks: Bytes) -> F32:
    return _decode_table(blocks, NF4_VALUES)


def _decode_fp4(blocks: Bytes) -> F32:
    return _decode_table(blocks, FP4_VALUES)


def _decode_table(blocks: Bytes, table: tuple[float, ...]) -> F32:
    """A scale in float32, then 64 codes, two a byte, the first in the high bits."""
    codes = _pairs(blocks[:, 4:] >> np.uint8(4), blocks[:, 4:] & np.uint8(15))
    values: F32 = np.array(table, np.float32)[codes] * _float32(blocks[:, :4])
    return values


def _decode_nvfp4(blocks: Bytes) -> F32:
    """The scale of all of the row in float32, those of 16 codes each in E4M3, then 32 codes, two a
    byte, the first in the low bits."""
    scales = e4m3()[blocks[:, 4:6]] * _float32(blocks[:, :4])
    codes = _pairs(blocks[:, 6:] & np.uint8(15), blocks[:, 6:] >> np.uint8(4))
    values: F32 = e2m1()[codes].reshape(-1, 2, 16) * scales[:, :, None]
    return values.reshape(len(blocks), 32)


def _pairs(first: Bytes, second: Bytes) -> Bytes:
    return np.stack([first, second], axis=-1).reshape(len(first), -1)


def _float32(four_bytes: Bytes) -> F32:
    return np.ascontiguousarray(four_bytes).view(np.float32)


FP8_128 = BlockFormat(BlockScheme("FP8_128", 128, 132, whole=False), _decode_fp8)
FP8_32 = BlockFormat(BlockScheme("FP8_32", 32, 36, whole=False), _decode_fp8)
MXFP8 = BlockFormat(BlockScheme("MXFP8", 32, 33, whole=False), _decode_mxfp8)
NF4 = BlockFormat(BlockScheme("NF4", 64, 36, whole=False), _decode_nf4)
FP4 = BlockFormat(BlockScheme("FP4", 64, 36, whole=False), _decode_fp4)
NVFP4_SCALED = BlockFormat(BlockScheme("NVFP4_SCALED", 32, 22), _decode_nvfp4)
