"""Reads matrices with a codebook for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.squeezellm import RowCodebooks
from penstock.weights.integer_codes import as_bytes, unpacked
from penstock.weights.tensor_file import Found


def read_squeezed(packed: Packed, found: Found) -> NDArray[Any]:
    """The matrix ``[n, k]`` in the type of its codebooks.

    Raises WeightError where places of outliers cannot be right.
    """
    form = packed.format
    assert isinstance(form, RowCodebooks)
    n, k = packed.shape
    codes, codebook, rows, columns, values = form.tensors(packed.name, packed.shape)
    file, tensor = found[codes.name]
    octets = as_bytes(file.integers(tensor.name)).reshape(n, -1)
    places = unpacked(octets, form.bits)[:, :k].astype(np.intp)
    matrix = np.take_along_axis(_floats(codebook.name, found), places, axis=1)
    file, tensor = found[rows.name]
    ends = file.integers(tensor.name)
    file, tensor = found[columns.name]
    at = file.integers(tensor.name)
    row_of = np.repeat(np.arange(n), np.maximum(np.diff(ends), 0))
    flat = row_of * k + at if len(row_of) == len(at) else None
    if (
        flat is None
        or ends[0] != 0
        or (np.diff(ends) < 0).any()
        or ((at < 0) | (at >= k)).any()
        or (np.diff(flat) <= 0).any()
    ):
        raise WeightError(
            f"{file.path}: {rows.name!r} and {columns.name!r} do not say where {len(at)} outliers "
            f"of a matrix of {n} x {k} are; download the checkpoint again"
        )
    matrix.reshape(-1)[flat] = _floats(values.name, found)
    return matrix


def _floats(name: str, found: Found) -> NDArray[Any]:
    file, tensor = found[name]
    return file.view(tensor.name)
