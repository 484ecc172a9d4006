"""Random matrices in blocks, for models that have a configuration alone."""

from __future__ import annotations

import math
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.quant import BlockScheme, BlockTensor
from penstock.quant.formats import ALL_FORMATS
from penstock.quant.formats.float_codes import FP4_VALUES, NF4_VALUES, e2m1

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

_TABLES: Final = {
    "NF4": np.array(NF4_VALUES, np.float32),
    "FP4": np.array(FP4_VALUES, np.float32),
}
_SPREADS: Final = {"FP8_128": 64.0, "FP8_32": 64.0, "MXFP8": 64.0, "NF4": 1 / 3, "FP4": 1 / 3}
"""Standard deviations of what codes stand for, where that is not 1."""
_ONE: Final = 0x38  # in E4M3


def dummy_codes(values: F32, scheme: BlockScheme) -> Bytes:
    """The codes nearest to normal ``values``, or nearly so, as blocks of ``scheme`` have them."""
    if "FP8" in scheme.format:
        wide = values * np.float32(_SPREADS[scheme.format])
        return wide.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    values = values * np.float32(_SPREADS.get(scheme.format, 1.0))
    table = _TABLES.get(scheme.format, e2m1())
    order = np.argsort(table, kind="stable")
    ascending = table[order]
    places = np.searchsorted((ascending[1:] + ascending[:-1]) / 2, values)
    codes = order[places].astype(np.uint8)
    half = codes.size // 2
    return codes[:half] | codes[half : 2 * half] << np.uint8(4)


def dummy_blocks(codes: Bytes, scheme: BlockScheme, n: int, k: int) -> BlockTensor:
    """A matrix ``[n, k]`` of ``codes``, repeated as often as need be, that gives activations about
    the size that they have."""
    scale = 1.0 / (_SPREADS.get(scheme.format, 1.0) * math.sqrt(k))
    count = k // scheme.columns
    if scheme.format.startswith("MX"):
        head = np.array([round(math.log2(scale)) + 127], np.uint8)
    else:
        head = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
    if scheme.format.startswith("NV"):
        head = np.append(head, np.full(2, _ONE, np.uint8))
    blocks = np.empty((n, count, scheme.block_bytes), np.uint8)
    blocks[..., : head.size] = head
    rest = scheme.block_bytes - head.size
    blocks[..., head.size :] = np.resize(codes, (n, count, rest))
    blocks.flags.writeable = False
    return BlockTensor(ALL_FORMATS[scheme.format], blocks)
