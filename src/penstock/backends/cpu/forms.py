"""How the CPU backend packs a matrix of each quantization scheme, and of floats.

A :class:`~penstock.backends.cpu.matrix_form.MatrixForm` is all that the backend has to know of a
scheme: how memory is reserved in the native executor, and how values are packed into it.
:func:`form_of` chooses one.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.arrays import DTYPES, as_bytes
from penstock.backends.cpu.block_layouts import BLOCK_LAYOUTS, POINT_LAYOUTS
from penstock.backends.cpu.codebook_form import CodebookForm
from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.matrix_form import MatrixForm, MatrixPart, Product
from penstock.backends.cpu.native_ops import MatrixId
from penstock.interface.weights import WeightValue
from penstock.models.spec import DType
from penstock.quant import (
    BlockScheme,
    BlockTensor,
    CodebookScheme,
    GridScheme,
    GroupScheme,
    GroupTensor,
    LatticeMatrix,
    LatticeScheme,
    QuantScheme,
    not_finite,
    not_sparse,
    require_finite,
    require_in_order,
)
from penstock.quant.formats import BLOCK_FORMATS
from penstock.quant.scheme import TableScheme

_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}


class TableForm(MatrixForm):
    """Matrices of which rows are looked up, too."""

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        return self.add_table(native, op.n, op.k, op.gated is not None, op.weight_only, experts)

    @abstractmethod
    def add_table(
        self,
        native: NativeExecutor,
        n: int,
        k: int,
        gated: bool = False,
        weight_only: bool = False,
        experts: int = 1,
    ) -> MatrixId:
        """As :meth:`add`, of a matrix that need not be a product's."""


class FloatForm(MatrixForm):
    """Values in a floating-point type."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype

    def __str__(self) -> str:
        return self._dtype

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        return native.add_matrix(self._dtype, op.n, op.k, op.gated is not None, experts)

    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        rows = _floats(value, part.name).astype(DTYPES[self._dtype], copy=False)
        part.native.pack_rows(part.matrix, part.first, len(rows), as_bytes(rows))


class GridForm(MatrixForm):
    """Points of each row's grid, which the executor rounds to while it packs."""

    def __init__(self, scheme: GridScheme) -> None:
        if scheme.columns != 16:
            raise ValueError(f"windows of {scheme.columns} columns, which no kernel multiplies")
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

    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        rows = _rounded_from(_floats(value, part.name))
        if not part.native.pack_grid_rows(
            part.matrix, part.first, len(rows), _ELEMENTS[rows.dtype], as_bytes(rows)
        ):
            raise not_finite(part.name)


class GroupForm(TableForm):
    """Codes with a scale for each group of columns: rounded to, or as a checkpoint has them."""

    def __init__(self, scheme: GroupScheme) -> None:
        self._scheme = scheme

    def __str__(self) -> str:
        return str(self._scheme)

    def add_table(
        self,
        native: NativeExecutor,
        n: int,
        k: int,
        gated: bool = False,
        weight_only: bool = False,
        experts: int = 1,
    ) -> MatrixId:
        return native.add_int_matrix(
            bits=self._scheme.bits,
            group=self._scheme.group_size or 0,
            n=n,
            k=k,
            gated=gated,
            zero_points=self._scheme.zero_points,
            weight_only=weight_only,
            sparse=self._scheme.sparse,
            experts=experts,
        )

    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        if isinstance(value, GroupTensor):
            tensor = require_in_order(value, part.name)
        else:
            floats = _floats(value, part.name)
            tensor = round_weights(part.native, floats, self._scheme, part.name)
        codes, scales, zeros = tensor.codes, tensor.scales, tensor.zeros
        if not part.native.pack_int_rows(part.matrix, part.first, len(codes), codes, scales, zeros):
            raise not_sparse(part.name)


class BlockForm(TableForm):
    """Blocks of a file, whose codes and scales are put into the order of kernels."""

    def __init__(self, scheme: BlockScheme) -> None:
        self._scheme = scheme

    def __str__(self) -> str:
        return str(self._scheme)

    def add_table(
        self,
        native: NativeExecutor,
        n: int,
        k: int,
        gated: bool = False,
        weight_only: bool = False,
        experts: int = 1,
    ) -> MatrixId:
        return native.add_block_matrix(
            format=self._scheme.format,
            n=n,
            k=k,
            gated=gated,
            weight_only=weight_only,
            experts=experts,
        )

    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        if not isinstance(value, BlockTensor):
            raise ValueError(f"{part.name} is no matrix in blocks, and nothing rounds to {self}")
        if value.scheme != self._scheme:
            raise ValueError(f"{part.name} is in {value.scheme}, and not in {self}")
        part.native.pack_block_rows(part.matrix, part.first, value.shape[0], as_bytes(value.blocks))


class PointsForm(MatrixForm):
    """Codes of lattice points: of the bytes of 8 columns the first two, or those behind them."""

    def __init__(self, scheme: BlockScheme) -> None:
        self._scheme = scheme

    def __str__(self) -> str:
        return str(self._scheme)

    def add(self, native: NativeExecutor, op: Product, experts: int) -> MatrixId:
        return native.add_block_matrix(
            format=self._scheme.format.removesuffix(" second"),
            n=op.n,
            k=op.k,
            gated=False,
            weight_only=True,
            experts=experts,
        )

    def pack(self, part: MatrixPart, value: WeightValue) -> None:
        if not isinstance(value, LatticeMatrix) or value.kept is not None:
            raise ValueError(f"{part.name} is no matrix of lattice points, or some rows of one")
        octets = slice(2) if self._scheme.format == "E8P" else slice(2, None)
        codes = np.ascontiguousarray(value.codes[..., octets])
        part.native.pack_block_rows(part.matrix, part.first, len(codes), as_bytes(codes))


def packed_bytes(scheme: QuantScheme, n: int, k: int, dtype: DType) -> int:
    """The bytes of an ``[n, k]`` matrix as kernels have it, in a plan whose weights are of
    ``dtype``, but for what pads whole panels."""
    if isinstance(scheme, CodebookScheme):
        return CodebookForm(scheme, dtype).nbytes(n, k)
    if not isinstance(scheme, BlockScheme):
        return scheme.nbytes(n, k)
    layouts = {**BLOCK_LAYOUTS, **POINT_LAYOUTS}
    return layouts[scheme.format].nbytes(n, k)


def form_of(scheme: QuantScheme | None, dtype: DType) -> MatrixForm:
    """The form of matrices quantized by ``scheme``, or else kept in ``dtype``."""
    match scheme:
        case None:
            return FloatForm(dtype)
        case GridScheme():
            return GridForm(scheme)
        case BlockScheme() if scheme.format in POINT_LAYOUTS:
            return PointsForm(scheme)
        case GroupScheme() | BlockScheme():
            return table_form(scheme)
        case CodebookScheme():
            return CodebookForm(scheme, dtype)
        case LatticeScheme():
            raise ValueError(f"no kernel has matrices in {scheme}")


def table_form(scheme: TableScheme) -> TableForm:
    """The form of tables of rows."""
    if isinstance(scheme, GroupScheme):
        return GroupForm(scheme)
    known = BLOCK_FORMATS.get(scheme.format)
    if scheme.format not in BLOCK_LAYOUTS or known is None or known.scheme != scheme:
        raise ValueError(f"no kernel has matrices in {scheme}")
    return BlockForm(scheme)


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
    """Return ``value`` if it is an array of floats, else raise ValueError."""
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"{name} is stored as {value.scheme}, which no kernel reads as it is")


def _rounded_from(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return ``matrix`` in a type that native rounding reads."""
    return matrix if matrix.dtype in _ELEMENTS else matrix.astype(np.float32)
