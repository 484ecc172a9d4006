"""Reads matrices that a GGUF file has in blocks: as views of the mapped file, or with a factor of
each matrix put into its blocks."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.gguf.blocks import BlockMatrix
from penstock.quant import BlockTensor
from penstock.quant.formats.float_codes import NVFP4_SCALED
from penstock.weights.float_codes import read_scales
from penstock.weights.gguf_file import GgufFile
from penstock.weights.rows import Runs, rows_of
from penstock.weights.tensor_file import Found

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

_MOST: Final = 448.0 * 6.0
"""The largest value of NVFP4 without its factor."""
_ZERO: Final = np.uint8(127)
"""The scale that GGUF files have for 0, and that is no number in E4M3."""
_CHUNK: Final = 1 << 18
"""Number of values whose codes are put into another order at a time, so that it happens in
cache."""


def read_blocks(packed: Packed, found: Found, runs: Runs | None = None) -> BlockTensor:
    """The rows of each of ``runs`` (first, end) of the matrix ``[n, k]``, or of the matrices of a
    stack one below another; None: all.

    Raises WeightError where scales or factors cannot be right.
    """
    form = packed.format
    assert isinstance(form, BlockMatrix)
    stored, *factors = form.tensors(packed.name, packed.shape)
    file, tensor = found[stored.name]
    assert isinstance(file, GgufFile)
    matrix = file.blocks(tensor.name, runs)
    if not factors:
        return matrix
    (factor,) = factors
    by_row = np.repeat(read_scales(factor, found, most=_MOST), packed.shape[-2])
    blocks = _scaled(matrix.blocks, rows_of(by_row, runs))
    if blocks is None:
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} has scales beyond the largest of NVFP4; download "
            "the file again, or convert the model again"
        )
    blocks.flags.writeable = False
    return BlockTensor(NVFP4_SCALED, blocks)


def _scaled(blocks: Bytes, factors: F32) -> Bytes | None:
    """Blocks of NVFP4_SCALED ``[n, count, 22]`` with the values of those of NVFP4
    ``[n, count / 2, 36]``, times a factor of each row; None where these have scales that those
    cannot have."""
    n, half, _ = blocks.shape
    result = np.empty((n, 2 * half, NVFP4_SCALED.scheme.block_bytes), np.uint8)
    result[..., :4] = factors[:, None].view(np.uint8).reshape(n, 1, 4)
    if (blocks[..., :4] == 255).any():
        return None
    scales = np.where(blocks[..., :4] == _ZERO, np.uint8(0), blocks[..., :4] & np.uint8(127))
    result[..., 4:6] = scales.reshape(n, 2 * half, 2)
    rows = max(1, _CHUNK // max(64 * half, 1))
    for first in range(0, n, rows):
        by_halves = blocks[first : first + rows, :, 4:].reshape(-1, 2, 8)
        low, high = by_halves & np.uint8(15), by_halves >> np.uint8(4)
        columns = np.concatenate([low, high], axis=-1)
        pairs = columns[..., ::2] | columns[..., 1::2] << np.uint8(4)
        result[first : first + rows, :, 6:] = pairs.reshape(-1, 2 * half, 16)
    return result
