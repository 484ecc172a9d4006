"""Random matrices in blocks, for models that have a configuration alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.quant import BlockScheme, BlockTensor
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.formats.float_codes import FP4_VALUES, NF4_VALUES, e2m1

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]


def _nearest(table: F32) -> Callable[[F32], Bytes]:
    """The codes of 4 bits, two a byte, nearest to values."""
    order = np.argsort(table, kind="stable")
    ascending = table[order]

    def codes(values: F32) -> Bytes:
        places = np.searchsorted((ascending[1:] + ascending[:-1]) / 2, values)
        nearest = order[places].astype(np.uint8)
        half = nearest.size // 2
        return nearest[:half] | nearest[half : 2 * half] << np.uint8(4)

    return codes


def _e4m3(values: F32) -> Bytes:
    return values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def _float32(scale: float) -> Bytes:
    return np.frombuffer(np.float32(scale).tobytes(), np.uint8)


def _power(scale: float) -> Bytes:
    """The nearest power of two, plus 127."""
    return np.array([round(math.log2(scale)) + 127], np.uint8)


def _of_two_levels(scale: float) -> Bytes:
    """The row's scale in float32, and 1 in E4M3 for both groups."""
    return np.append(_float32(scale), np.full(2, 0x38, np.uint8))


@dataclass(frozen=True)
class _Drawn:
    """How blocks of a format are made of normal values."""

    codes: Callable[[F32], Bytes]
    scale: Callable[[float], Bytes]
    """The bytes that a block has for its scale, before its codes."""
    spread: float = 1.0
    """The standard deviation of what codes stand for."""


_DRAWN: Final[Mapping[str, _Drawn]] = {
    "MXFP4": _Drawn(_nearest(e2m1()), _power),
    "NVFP4_SCALED": _Drawn(_nearest(e2m1()), _of_two_levels),
    "MXFP8": _Drawn(_e4m3, _power, 64.0),
    "FP8_128": _Drawn(_e4m3, _float32, 64.0),
    "FP8_32": _Drawn(_e4m3, _float32, 64.0),
    "NF4": _Drawn(_nearest(np.array(NF4_VALUES, np.float32)), _float32, 1 / 3),
    "FP4": _Drawn(_nearest(np.array(FP4_VALUES, np.float32)), _float32, 1 / 3),
}


def dummy_codes(values: F32, scheme: BlockScheme) -> Bytes:
    """The codes nearest to normal ``values``, or nearly so, as blocks of ``scheme`` have them."""
    drawn = _DRAWN[scheme.format]
    return drawn.codes(values * np.float32(drawn.spread))


def dummy_blocks(codes: Bytes, scheme: BlockScheme, n: int, k: int) -> BlockTensor:
    """A matrix ``[n, k]`` of ``codes``, repeated as often as need be, that gives activations about
    the size that they have."""
    drawn = _DRAWN[scheme.format]
    scale = drawn.scale(1.0 / (drawn.spread * math.sqrt(k)))
    blocks = np.empty((n, k // scheme.columns, scheme.block_bytes), np.uint8)
    blocks[..., : scale.size] = scale
    rest = scheme.block_bytes - scale.size
    blocks[..., scale.size :] = np.resize(codes, (*blocks.shape[:2], rest))
    blocks.flags.writeable = False
    return BlockTensor(BLOCK_FORMATS[scheme.format], blocks)
