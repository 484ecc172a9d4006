"""Reads matrices of lattice points, as the floats that they stand for."""

from __future__ import annotations

import numpy as np

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.quip import Quip
from penstock.quant.lattice_matrix import LatticeMatrix
from penstock.weights.rows import Runs, rows_of
from penstock.weights.tensor_file import Found

F32 = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def read_quip(packed: Packed, found: Found, runs: Runs | None = None) -> F32:
    """The rows of each of ``runs`` of the matrix, in float32; None: all.

    All rows are decoded in any case, since turning joins them. Raises WeightError where the scale
    is none.
    """
    form = packed.format
    assert isinstance(form, Quip)
    codes_of, scale_of = form.tensors(packed.name, packed.shape)
    file, tensor = found[scale_of.name]
    scale = np.float32(file.view(tensor.name).astype(np.float32).reshape(-1)[0])
    if not np.isfinite(scale) or scale < 0:
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} is {scale}, which no scale is; download the "
            "checkpoint again"
        )
    file, tensor = found[codes_of.name]
    matrix = LatticeMatrix(file.codes(tensor.name), scale, packed.columns, form.seed)
    return rows_of(matrix.dequantize(), runs)
