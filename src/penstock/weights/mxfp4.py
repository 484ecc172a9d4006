"""Reads matrices that a checkpoint has in MXFP4 (OCP Microscaling Formats, version 1.0)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import MXFP4_BLOCK, Mxfp4
from penstock.quant import BlockTensor
from penstock.quant.formats import FORMATS
from penstock.quant.formats.float_codes import e2m1
from penstock.weights.tensor_file import Found

_BIAS: Final = 127
_NOT_A_NUMBER: Final = 255
_LARGEST: Final = 252
"""The largest scale whose products with all codes bfloat16 holds."""
_PIECE: Final = 1 << 18  # blocks at a time, so that what is between takes little memory


def read_mxfp4(
    source: Mxfp4,
    found: Found,
    runs: Sequence[tuple[int, int]],
) -> NDArray[Any]:
    """Matrices of the stack in bfloat16, every value exact: those of each of ``runs`` (first, end),
    ``[number, n, k]``.

    Raises WeightError where a scale is no number, or so large that values exceed bfloat16.
    """
    scales = _scales(source, found, runs)
    blocks = _of(runs, found[source.blocks.name][0].octets(source.blocks.name))
    shape = (len(blocks), *source.shape[1:])
    blocks, scales = blocks.reshape(-1, blocks.shape[-1]), scales.reshape(-1)
    result = np.empty((len(blocks), MXFP4_BLOCK), ml_dtypes.bfloat16)
    pairs = _pairs()
    for first in range(0, len(blocks), _PIECE):
        some = slice(first, first + _PIECE)
        exponents = scales[some].astype(np.int32)[:, None] - _BIAS
        result[some] = np.ldexp(pairs[blocks[some]].reshape(len(exponents), -1), exponents)
    return result.reshape(shape)


def read_mxfp4_blocks(source: Mxfp4, index: int, found: Found) -> BlockTensor:
    """Matrix ``index`` of the stack in blocks as GGUF has them: a byte of the scale, then bytes
    with a column of the first half and one of the second.

    Raises WeightError as :func:`read_mxfp4` does.
    """
    runs = ((index, index + 1),)
    scales = _scales(source, found, runs)[0]
    stored = _of(runs, found[source.blocks.name][0].octets(source.blocks.name))[0]
    codes = np.stack([stored & 15, stored >> 4], axis=-1).reshape(*scales.shape, MXFP4_BLOCK)
    form = FORMATS["MXFP4"]
    blocks = np.empty((*scales.shape, form.scheme.block_bytes), np.uint8)
    blocks[..., 0] = scales
    half = MXFP4_BLOCK // 2
    blocks[..., 1:] = codes[..., :half] | codes[..., half:] << 4
    return BlockTensor(form, blocks)


def _scales(
    source: Mxfp4,
    found: Found,
    runs: Sequence[tuple[int, int]],
) -> NDArray[np.uint8]:
    file, _ = found[source.scales.name]
    scales = _of(runs, file.octets(source.scales.name))
    if scales.size and scales.max() > _LARGEST:
        what = "is no number" if scales.max() == _NOT_A_NUMBER else "makes values too large"
        raise WeightError(
            f"{file.path}: tensor {source.scales.name!r} has a scale, {scales.max()}, that {what}; "
            "download the checkpoint again"
        )
    return scales


def _of(runs: Sequence[tuple[int, int]], stack: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if len(runs) == 1:
        return stack[slice(*runs[0])]
    return np.concatenate([stack[first:end] for first, end in runs])


def _pairs() -> NDArray[np.float32]:
    """The two values of each byte, ``[256, 2]``."""
    values = e2m1()
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=1)
