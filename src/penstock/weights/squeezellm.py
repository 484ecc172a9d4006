"""Reads matrices with a codebook for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.interface.sources import Packed
from penstock.models.row_codebooks import RowCodebooks
from penstock.quant import CodebookMatrix
from penstock.weights.integer_codes import as_bytes, unpacked
from penstock.weights.tensor_file import Found


def read_squeezed(packed: Packed, found: Found) -> CodebookMatrix | NDArray[Any]:
    """The matrix ``[n, k]`` as it is stored, or, where it is to be decoded, in the type of its
    codebooks.

    Raises WeightError where places of outliers cannot be right, or values are not finite.
    """
    form = packed.format
    assert isinstance(form, RowCodebooks)
    n, k = packed.shape
    codes, codebook, rows, columns, values = form.tensors(packed.name, packed.shape)
    file, tensor = found[codes.name]
    words = file.integers(tensor.name)
    books, outliers = _floats(codebook.name, found), _floats(values.name, found)
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
    if form.decoded:
        places = unpacked(as_bytes(words).reshape(n, -1), form.bits)[:, :k].astype(np.intp)
        matrix = np.take_along_axis(books, places, axis=1)
        matrix.reshape(-1)[flat] = outliers
        return matrix
    return CodebookMatrix(
        form.kept,
        np.ascontiguousarray(as_bytes(words).reshape(n, -1)).view("<i4"),
        _finite(books, codebook.name, found),
        ends.astype(np.int32),
        at.astype(np.int32),
        _finite(outliers, values.name, found),
        k,
    )


def _floats(name: str, found: Found) -> NDArray[Any]:
    file, tensor = found[name]
    return file.view(tensor.name)


def _finite(array: NDArray[Any], name: str, found: Found) -> NDArray[np.float32]:
    """The numbers in float32: an infinite one would spoil, as what pads rows, all outputs."""
    wide: NDArray[np.float32] = array.astype(np.float32)
    if np.isfinite(wide).all():
        return wide
    raise WeightError(
        f"{found[name][0].path}: tensor {name!r} has values that are not finite; download the "
        "checkpoint again"
    )
