"""Reads matrices that a checkpoint has in MXFP4 (OCP Microscaling Formats, version 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Mxfp4
from penstock.weights.tensor_file import Tensor, TensorFile

_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS: Final = 127
_NOT_A_NUMBER: Final = 255
_LARGEST: Final = 252
"""The largest scale whose products with all codes bfloat16 holds."""
_PIECE: Final = 1 << 22  # bytes of codes at a time, so that what is between needs little memory


def read_mxfp4(source: Mxfp4, found: Mapping[str, tuple[TensorFile, Tensor]]) -> NDArray[Any]:
    """The stack of matrices in bfloat16, every value exact: ``[number, n, k]``.

    Raises WeightError where a scale is no number, or so large that values exceed bfloat16.
    """
    file, _ = found[source.scales.name]
    scales = file.octets(source.scales.name).reshape(-1)
    if scales.size and scales.max() > _LARGEST:
        what = "is no number" if scales.max() == _NOT_A_NUMBER else "makes values too large"
        raise WeightError(
            f"{file.path}: tensor {source.scales.name!r} has a scale, {scales.max()}, that {what}; "
            "download the checkpoint again"
        )
    file, _ = found[source.blocks.name]
    blocks = file.octets(source.blocks.name).reshape(len(scales), -1)
    result = np.empty((len(scales), 2 * blocks.shape[1]), ml_dtypes.bfloat16)
    rows = max(_PIECE // max(blocks.shape[1], 1), 1)
    for first in range(0, len(scales), rows):
        some = slice(first, first + rows)
        exponents = scales[some].astype(np.int32)[:, None] - _BIAS
        result[some] = np.ldexp(_pairs()[blocks[some]].reshape(len(exponents), -1), exponents)
    return result.reshape(source.shape)


def _pairs() -> NDArray[np.float32]:
    """The two values of each byte, ``[256, 2]``."""
    values = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=1)
