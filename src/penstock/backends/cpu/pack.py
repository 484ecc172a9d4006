"""Weights into the native executor: rounded and packed from a source, or moved as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.interface import Bytes, MatrixId, NativeExecutor
from penstock.interface.weights import Place, WeightSource
from penstock.models.spec import DType
from penstock.plan.ops import WeightName
from penstock.quant import (
    GridScheme,
    GroupScheme,
    GroupTensor,
    QuantScheme,
    not_finite,
    require_finite,
)

DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}


class Fill(NamedTuple):
    """One weight's way into the executor."""

    name: WeightName
    put: Callable[[NDArray[Any]], None]


def pack(fills: Sequence[Fill], weights: WeightSource) -> None:
    """Carry out ``fills`` in their order; raises what reading and packing raise.

    The next weight is read, converted or generated while one is packed, so that two are in memory
    at most.
    """
    with ThreadPoolExecutor(1, "penstock-weights") as reader:
        ahead = [reader.submit(weights.get, fill.name) for fill in fills[:1]]
        for fill, following in zip(fills, (*fills[1:], None), strict=True):
            array = ahead.pop().result()
            if following is not None:
                ahead.append(reader.submit(weights.get, following.name))
            fill.put(array)


def pack_part(
    native: NativeExecutor,
    matrix: MatrixId,
    first: int,
    kept_as: QuantScheme | DType,
    name: WeightName,
    array: NDArray[Any],
) -> None:
    """Pack ``array`` ``[rows, k]`` as a matrix's rows from ``first`` on.

    Raises WeightError where it is to be quantized and has a value that is not finite.
    """
    if isinstance(kept_as, GridScheme):
        rows = _rounded_from(array)
        if not native.pack_grid_rows(
            matrix, first, len(rows), _ELEMENTS[rows.dtype], as_bytes(rows)
        ):
            raise not_finite(name)
    elif isinstance(kept_as, GroupScheme):
        tensor = round_weights(native, array, kept_as, name)
        native.pack_int_rows(matrix, first, len(array), tensor.codes, tensor.scales, tensor.zeros)
    else:
        rows = array.astype(DTYPES[kept_as], copy=False)
        native.pack_rows(matrix, first, len(rows), as_bytes(rows))


def as_bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _rounded_from(matrix: NDArray[Any]) -> NDArray[Any]:
    """In a type that native rounding reads."""
    return matrix if matrix.dtype in _ELEMENTS else matrix.astype(np.float32)


def round_weights(
    native: NativeExecutor, matrix: NDArray[Any], scheme: GroupScheme, name: str
) -> GroupTensor:
    """As ``quant.quantize``, bit by bit, on the executor's threads."""
    matrix = _rounded_from(matrix)
    n, k = matrix.shape
    codes = np.empty((n, k), np.int8)
    scales = np.empty((n, scheme.groups(k)), np.float32)
    zeros = np.empty(scales.shape, np.int8) if scheme.zero_points else None
    native.round_rows(
        _ELEMENTS[matrix.dtype],
        as_bytes(matrix),
        scheme.bits,
        scheme.group_size or 0,
        codes,
        scales,
        zeros,
    )
    require_finite(scales, name)
    return GroupTensor(scheme, codes, scales, zeros)


class NativeRegions:
    """The packed weights of a native executor (``interface.weights.PackedRegions``)."""

    def __init__(self, native: NativeExecutor, names: tuple[str, ...]) -> None:
        self._native = native
        self.names = names
        self.sizes = tuple(native.region_bytes)
        assert len(names) == len(self.sizes)

    def read(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        return self._native.read_regions(fd, list(places), chunk)

    def write(self, fd: int, places: Sequence[Place], chunk: int) -> list[list[int]]:
        return self._native.write_regions(fd, list(places), chunk)
