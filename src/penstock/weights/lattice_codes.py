"""Reads matrices of lattice points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.lattice_codes import LatticeCodes
from penstock.quant import LatticeMatrix
from penstock.quant.scheme import LatticeScheme
from penstock.weights.rows import Runs
from penstock.weights.tensor_file import Found


def read_lattice(
    packed: Packed, found: Found, runs: Runs | None = None
) -> LatticeMatrix | NDArray[np.float32]:
    """The rows of each of ``runs`` of the matrix, None: all; in float32 where it is to be decoded.

    All rows are decoded in any case, since turning joins them. Raises WeightError where the scale
    is none.
    """
    form = packed.format
    assert isinstance(form, LatticeCodes)
    codes_of, scale_of = form.tensors(packed.name, packed.shape)
    file, tensor = found[scale_of.name]
    scale = np.float32(file.view(tensor.name).astype(np.float32).reshape(-1)[0])
    if not np.isfinite(scale) or scale < 0:
        raise WeightError(
            f"{file.path}: tensor {tensor.name!r} is {scale}, which no scale is; download the "
            "checkpoint again"
        )
    file, tensor = found[codes_of.name]
    scheme = LatticeScheme(form.bits, form.seed)
    matrix = LatticeMatrix(scheme, file.codes(tensor.name), scale, packed.columns)
    if runs is not None:
        matrix = matrix.rows(*runs)
    return matrix.dequantize() if form.decoded else matrix
