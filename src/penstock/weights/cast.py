"""Values of weights in another floating-point type, and those that codes stand for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.models.spec import DType
from penstock.quant import CodebookTensor, StoredTensor
from penstock.weights.tensor_file import NUMPY_DTYPES

_CHUNK: Final = 1 << 22  # values that are dequantized at a time


def cast(array: NDArray[Any], dtype: DType, name: str) -> NDArray[Any]:
    """``array`` in ``dtype``, rounded to nearest even; itself where it already is.

    Raises WeightError, naming the tensor, where a finite value would become infinite.
    """
    target = NUMPY_DTYPES[dtype]
    if array.dtype == target:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(target)
    if dtype != "float32":
        infinite = np.isinf(result)
        if infinite.any() and np.isfinite(array[infinite]).any():
            largest = float(_largest(array))
            raise WeightError(
                f"tensor {name!r} has values up to {largest:.4g} in magnitude, too large for "
                f"{dtype}; load it with dtype bfloat16 or float32"
            )
    result.flags.writeable = False
    return result


def dequantized(matrix: StoredTensor | CodebookTensor, dtype: DType, name: str) -> NDArray[Any]:
    """The values of ``matrix`` in ``dtype``, read-only; some rows at a time: in float32, with the
    integers that it is made of, all of a vocabulary's would take several times the memory."""
    n, k = matrix.shape
    values = np.empty((n, k), NUMPY_DTYPES[dtype])
    rows = max(1, _CHUNK // max(k, 1))
    for first in range(0, n, rows):
        some = first, min(first + rows, n)
        values[slice(*some)] = cast(matrix.rows(some).dequantize(), dtype, name)
    values.flags.writeable = False
    return values


def _largest(array: NDArray[Any]) -> np.float32:
    """The largest finite magnitude."""
    wide = np.abs(array.astype(np.float32))
    largest: np.float32 = wide[np.isfinite(wide)].max()
    return largest
