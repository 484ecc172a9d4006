"""The forms in which the native executor keeps matrices: floats, and one for each scheme.

A form is all that the CPU backend has to know of a scheme; :data:`FORMS` is where it is entered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.interface import MatrixId, NativeExecutor
from penstock.backends.cpu.pack import DTYPES, as_bytes
from penstock.interface.weights import WeightValue
from penstock.models.spec import DType
from penstock.plan.ops import ExpertLinear, Linear, WeightName
from penstock.quant import (
    GridScheme,
    GroupScheme,
    GroupTensor,
    QuantScheme,
    not_finite,
    require_finite,
    require_in_order,
)

Product = Linear | ExpertLinear

_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}


class MatrixForm(ABC):
    """How the native executor keeps a matrix."""

    @abstractmethod
    def __str__(self) -> str:
        """The form's name, with which products that are alike are found."""

    @abstractmethod
    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        """Reserve room for the matrices of ``op``, one for each expert; raises ValueError where no
        kernel has them."""

    @abstractmethod
    def pack(
        self,
        native: NativeExecutor,
        matrix: MatrixId,
        first: int,
        name: WeightName,
        value: WeightValue,
    ) -> None:
        """Pack ``value`` ``[rows, k]`` as the matrix's rows from ``first`` on. The rows of experts
        follow each other.

        Raises WeightError, naming ``name``, where it is to be rounded and has a value that is not
        finite.
        """


class FloatForm(MatrixForm):
    """Values in a floating-point type."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype

    def __str__(self) -> str:
        return self._dtype

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        return native.add_matrix(self._dtype, op.n, op.k, op.gated is not None, experts)

    def pack(
        self,
        native: NativeExecutor,
        matrix: MatrixId,
        first: int,
        name: WeightName,
        value: WeightValue,
    ) -> None:
        rows = _floats(value, name).astype(DTYPES[self._dtype], copy=False)
        native.pack_rows(matrix, first, len(rows), as_bytes(rows))


class GridForm(MatrixForm):
    """Points of each row's grid, which the executor rounds to while it packs."""

    def __init__(self, scheme: GridScheme) -> None:
        self._scheme = scheme

    def __str__(self) -> str:
        return str(self._scheme)

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        return native.add_grid_matrix(
            bits=self._scheme.bits,
            n=op.n,
            k=op.k,
            gated=op.gated is not None,
            weight_only=op.weight_only,
            experts=experts,
        )

    def pack(
        self,
        native: NativeExecutor,
        matrix: MatrixId,
        first: int,
        name: WeightName,
        value: WeightValue,
    ) -> None:
        rows = _rounded_from(_floats(value, name))
        if not native.pack_grid_rows(
            matrix, first, len(rows), _ELEMENTS[rows.dtype], as_bytes(rows)
        ):
            raise not_finite(name)


class GroupForm(MatrixForm):
    """Codes with a scale for each group of columns: rounded to, or as a checkpoint has them."""

    def __init__(self, scheme: GroupScheme) -> None:
        self._scheme = scheme

    def __str__(self) -> str:
        return str(self._scheme)

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        return native.add_int_matrix(
            bits=self._scheme.bits,
            group=self._scheme.group_size or 0,
            n=op.n,
            k=op.k,
            gated=op.gated is not None,
            zero_points=self._scheme.zero_points,
            weight_only=op.weight_only,
            experts=experts,
        )

    def pack(
        self,
        native: NativeExecutor,
        matrix: MatrixId,
        first: int,
        name: WeightName,
        value: WeightValue,
    ) -> None:
        if isinstance(value, GroupTensor):
            tensor = require_in_order(value, name)
        else:
            tensor = round_weights(native, _floats(value, name), self._scheme, name)
        codes, scales, zeros = tensor.codes, tensor.scales, tensor.zeros
        native.pack_int_rows(matrix, first, len(codes), codes, scales, zeros)


FORMS: Final[Mapping[type[QuantScheme], Callable[[Any], MatrixForm]]] = {
    GridScheme: GridForm,
    GroupScheme: GroupForm,
}


def form_of(scheme: QuantScheme | None, dtype: DType) -> MatrixForm:
    """The form of matrices quantized by ``scheme``, or else kept in ``dtype``."""
    if scheme is None:
        return FloatForm(dtype)
    return FORMS[type(scheme)](scheme)


def round_weights(
    native: NativeExecutor, matrix: NDArray[Any], scheme: GroupScheme, name: str
) -> GroupTensor:
    """Quantize to the same bits as ``quant.quantize`` on the executor's threads."""
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


def _floats(value: WeightValue, name: str) -> NDArray[Any]:
    """``value`` where it is an array of floats."""
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"{name} is stored as {value.scheme}, which no kernel reads as it is")


def _rounded_from(matrix: NDArray[Any]) -> NDArray[Any]:
    """In a type that native rounding reads."""
    return matrix if matrix.dtype in _ELEMENTS else matrix.astype(np.float32)
