"""Reads matrices of which two weights of each four are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed, Shape
from penstock.models.sparse24 import KEPT, OF, Sparse24
from penstock.weights.integer_codes import require_shape
from penstock.weights.tensor_file import Found


def read_sparse24(packed: Packed, found: Found) -> NDArray[Any]:
    """The matrix ``[n, k]`` in the type in which its weights are stored.

    Raises WeightError where bits are not two of each four.
    """
    assert isinstance(packed.format, Sparse24)
    file, tensor = found[f"{packed.name}.compressed"]
    return expanded(file.view(tensor.name), packed.name, packed.shape, found)


def expanded(kept: NDArray[Any], name: str, shape: Shape, found: Found) -> NDArray[Any]:
    """The matrix ``[n, k]`` of what is kept of it ``[n, k / 2]``, with 0 between. Raises
    WeightError."""
    n, k = shape
    require_shape(name, shape, found, "shape")
    file, tensor = found[f"{name}.bitmask"]
    bits = np.unpackbits(file.codes(tensor.name).reshape(n, -1), axis=1, bitorder="little")
    fours = bits[:, :k].reshape(n, k // OF, OF).sum(axis=2, dtype=np.uint8)
    if (fours != KEPT).any() or bits[:, k:].any():
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} does not keep {KEPT} of each {OF} columns; "
            "download the checkpoint again"
        )
    matrix = np.zeros((n, k), kept.dtype)
    matrix[bits[:, :k].astype(bool)] = kept.reshape(-1)
    return matrix
