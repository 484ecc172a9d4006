"""Blocks of 4-bit codes that are looked up in a table of 16 values: IQ4_*, MXFP4 and NVFP4."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quant.blocks import F32, Bytes
from penstock.quant.formats.parts import half, halves, not_finite, of_files, planes

IQ4_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the codes of IQ4_NL and IQ4_XS stand for."""
E2M1_VALUES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What those of MXFP4 and NVFP4 stand for, twice: scales are halved instead. Code 8 is 0, not -0,
as ggml has it."""
_LARGEST_EXPONENT: Final = 252
"""The largest scale of MXFP4 whose products with all codes float32 holds."""


def _decode_iq4_nl(blocks: Bytes) -> F32:
    """A scale in float16, then 32 codes."""
    return _looked_up(IQ4_VALUES, halves(blocks[:, 2:])) * half(blocks[:, :2])


def _decode_iq4_xs(blocks: Bytes) -> F32:
    """The unit of scales in float16; the high two bits of the scales of eight sub-blocks of 32, and
    their low four; codes. Scales stand for themselves less 32."""
    count = len(blocks)
    two = np.array([0, 2, 4, 6], np.uint8)
    high = ((blocks[:, 2:4, None] >> two) & np.uint8(3)).reshape(count, 8)
    low = np.stack([blocks[:, 4:8] & np.uint8(15), blocks[:, 4:8] >> np.uint8(4)], axis=2)
    scales = (low.reshape(count, 8) | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    codes = _looked_up(IQ4_VALUES, planes(blocks[:, 8:], 16, 4)).reshape(count, 8, 32)
    values: F32 = codes * (half(blocks[:, :2]) * scales)[:, :, None]
    return values.reshape(count, 256)


def _decode_mxfp4(blocks: Bytes) -> F32:
    """A power of two plus 127, then 32 codes."""
    exponent = blocks[:, :1].astype(np.int32) - 128
    return _looked_up(E2M1_VALUES, halves(blocks[:, 1:])) * np.ldexp(np.float32(1), exponent)


def _exceeds(blocks: Bytes) -> NDArray[np.bool_]:
    """Whether the scale is 255, which is no number, or values exceed float32."""
    return blocks[:, 0] > _LARGEST_EXPONENT


def _decode_nvfp4(blocks: Bytes) -> F32:
    """Scales of four sub-blocks of 16 columns, without sign, of 4 bits of exponent and 3 of
    mantissa; then their codes, sub-block by sub-block. A scale of 127 is 0, as ggml has it."""
    packed = blocks[:, :4]
    exponent = ((packed >> np.uint8(3)) & np.uint8(15)).astype(np.int32)
    mantissa = (packed & np.uint8(7)).astype(np.float32)
    normal = np.ldexp(np.float32(8) + mantissa, exponent - 11)
    scales = np.where(exponent == 0, np.ldexp(mantissa, -10), normal)
    scales = np.where(packed == 127, np.float32(0), scales).astype(np.float32)
    codes = halves(blocks[:, 4:].reshape(len(blocks), 4, 8))
    values: F32 = _looked_up(E2M1_VALUES, codes) * scales[:, :, None]
    return values.reshape(len(blocks), 64)


def _looked_up(values: tuple[int, ...], codes: Bytes) -> F32:
    found: F32 = np.array(values, np.float32)[codes]
    return found


IQ4_NL = of_files("IQ4_NL", _decode_iq4_nl, not_finite(0))
IQ4_XS = of_files("IQ4_XS", _decode_iq4_xs, not_finite(0))
MXFP4 = of_files("MXFP4", _decode_mxfp4, _exceeds)
NVFP4 = of_files("NVFP4", _decode_nvfp4)
