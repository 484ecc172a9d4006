"""Matrices on the GPU and their products: ``plan.ops.Linear``, from canonical weights.

Made with a workspace on torch's ``meta`` device, a matrix takes no memory, holds nothing, and tells
the bytes, its own and the workspace's, that it takes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.backends.cuda import rounding
from penstock.backends.cuda.block_matrix import BlockMatrix
from penstock.backends.cuda.codebook_matrix import CodebookRowsMatrix
from penstock.backends.cuda.coded_matrix import (
    Array,
    Matrix,
    RoundedMatrix,
    Shape,
    check,
    packed_codes,
)
from penstock.backends.cuda.kernels import launch
from penstock.backends.cuda.kernels.tiles import Tile
from penstock.backends.cuda.kernels.torch_product import torch_product, torch_scratch
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.packing import pack_fours
from penstock.backends.cuda.point_matrix import PointMatrix
from penstock.backends.cuda.sparse_matrix import SparseMatrix
from penstock.backends.cuda.weights import TORCH_DTYPES
from penstock.backends.cuda.workspace import Workspace
from penstock.interface.weights import QuantizedTensor
from penstock.models.spec import DType, Gating
from penstock.quant import (
    BlockScheme,
    CodebookScheme,
    GridScheme,
    GroupScheme,
    GroupTensor,
    LatticeScheme,
    QuantScheme,
    require_in_order,
)

__all__ = [
    "FloatMatrix",
    "GridMatrix",
    "GroupMatrix",
    "Matrix",
    "Shape",
    "make_matrix",
]

_PADDED = 128
"""Rows of floats are padded to a multiple of this many columns."""


class FloatMatrix(Matrix):
    """Weights in a floating-point type.

    ``deterministic``: a row's result never depends on the other rows or on how many there are.
    Otherwise cuBLAS multiplies, which chooses its algorithm by the number of rows. Where x and the
    weights are not of one type, the product is always the deterministic one: cuBLAS has none.
    """

    def __init__(
        self,
        shape: Shape,
        dtype: DType,
        workspace: Workspace,
        x_dtype: torch.dtype,
        deterministic: bool,
    ) -> None:
        self.shape = shape
        padded = -(-shape.k // _PADDED) * _PADDED
        self._w = torch.zeros(
            (shape.weight_rows, padded), dtype=TORCH_DTYPES[dtype], device=workspace.device
        )
        self.weights = Weights("float", self._w, padded, bits=self._w.dtype.itemsize * 8)
        self._workspace = workspace
        self._x_dtype = x_dtype
        self._torch = not deterministic and x_dtype == self._w.dtype
        if self._torch:
            workspace.reserve(torch_scratch(shape.max_rows, shape.weight_rows))
        else:
            workspace.reserve(launch.scratch(self.weights, shape, x_dtype, workspace.capability))

    @property
    def nbytes(self) -> int:
        return self._w.nbytes

    def tile(self, rows: int) -> Tile | None:
        if self._torch:
            return None
        at = self._workspace.capability
        return launch.tile_of(self.weights, self.shape, self._x_dtype, rows, at)

    def fill(self, first_row: int, part: Tensor, name: str) -> None:
        self._w[first_row : first_row + len(part), : self.shape.k] = part

    def product(self, x: Tensor, out: Tensor, bias: Tensor | None, gated: Gating | None) -> None:
        check(self.shape, x, out, bias, gated)
        if self._torch:
            w = self._w[:, : self.shape.k]
            torch_product(w, x, out, bias, gated, self._workspace)
        else:
            launch.product(self.weights, self.shape, x, out, bias, gated, self._workspace)


class GridMatrix(RoundedMatrix):
    """Weights on their rows' grids, in 8 or 4 bits; ``weight_only``: x stays as it is."""

    def __init__(
        self,
        shape: Shape,
        scheme: GridScheme,
        workspace: Workspace,
        x_dtype: torch.dtype,
        weight_only: bool,
    ) -> None:
        if scheme.bits == 4 and scheme.columns != 32:
            raise ValueError(f"windows of {scheme.columns} columns, which no kernel multiplies")
        self._scheme = scheme
        n, device = shape.weight_rows, workspace.device
        as_bytes = scheme.bits == 8 and not weight_only
        plane = 32 if scheme.bits == 4 else 128 if as_bytes else 64
        codes, padded, depth = _room(shape, scheme.bits, plane, as_bytes, device)
        marks = None
        if scheme.bits == 4:
            marks = torch.zeros((padded // depth, n), dtype=torch.int32, device=device)
        weights = Weights(
            "grid",
            codes,
            padded,
            bits=scheme.bits,
            plane=plane,
            depth=depth,
            scales=torch.zeros(n, dtype=torch.float32, device=device),
            marks=marks,
            integers=not weight_only,
        )
        super().__init__(shape, weights, workspace, x_dtype)

    def _keep(self, rows: Tensor, to: slice) -> tuple[Tensor, Tensor]:
        codes, windows, scales, finite = rounding.round_to_grid(
            rows, self._scheme, transformed=self.weights.integers
        )
        assert self.weights.scales is not None
        self.weights.scales[to] = scales
        if self.weights.marks is not None:
            self.weights.marks[:, to] = pack_fours(windows)
        return codes, finite


class GroupMatrix(RoundedMatrix):
    """Weights of 8 or 4 bits in groups of columns; ``weight_only``: x stays as it is."""

    def __init__(
        self,
        shape: Shape,
        scheme: GroupScheme,
        workspace: Workspace,
        x_dtype: torch.dtype,
        weight_only: bool,
    ) -> None:
        self._scheme = scheme
        n, device = shape.weight_rows, workspace.device
        whole = scheme.group_size is None
        as_bytes = scheme.bits == 8 and not weight_only
        if as_bytes:
            plane = scheme.group_size or 128
        else:
            plane = 32 if scheme.bits == 4 else min(scheme.group_size or 64, 64)
        codes, padded, depth = _room(shape, scheme.bits, plane, as_bytes, device)
        size = depth if whole else scheme.group_size or 0
        groups = 1 if whole else padded // size
        marks = None
        if scheme.zero_points:
            marks = torch.zeros((-(-groups // 4), n), dtype=torch.int32, device=device)
        weights = Weights(
            "group",
            codes,
            padded,
            bits=scheme.bits,
            plane=plane,
            depth=depth,
            scales=torch.zeros((groups, n), dtype=torch.float32, device=device),
            marks=marks,
            size=size,
            whole=whole,
            integers=not weight_only,
        )
        super().__init__(shape, weights, workspace, x_dtype)

    def _keep(self, rows: Tensor, to: slice) -> tuple[Tensor, Tensor]:
        codes, scales, zeros, finite = rounding.round_to_groups(rows, self._scheme)
        self._keep_scales(scales, zeros, to)
        return codes, finite

    def fill_quantized(
        self, first_row: int, part: QuantizedTensor, name: str, put: Callable[[Array], Tensor]
    ) -> None:
        if not isinstance(part, GroupTensor):
            super().fill_quantized(first_row, part, name, put)
            return
        require_in_order(part, name)
        for some in rounding.slices(len(part.codes), self.shape.k):
            to = slice(first_row + some.start, first_row + some.stop)
            rows = part.rows((some.start, some.stop))
            self.weights.w[to] = packed_codes(put(rows.codes), self.weights)
            zeros = None if rows.zeros is None else put(rows.zeros)
            self._keep_scales(put(rows.scales), zeros, to)

    def _keep_scales(self, scales: Tensor, zeros: Tensor | None, to: slice) -> None:
        assert self.weights.scales is not None
        self.weights.scales[: scales.shape[1], to] = scales.t()
        if self.weights.marks is not None and zeros is not None:
            packed = pack_fours(zeros)
            self.weights.marks[: len(packed), to] = packed


def _room(
    shape: Shape, bits: int, plane: int, as_bytes: bool, device: torch.device
) -> tuple[Tensor, int, int]:
    """Zeros for codes, columns of a row with padding, columns of a unit (see ``packing.py``)."""
    unit = plane if as_bytes else plane * 16 // bits
    padded = -(-shape.k // unit) * unit
    size, dtype = (padded, torch.int8) if as_bytes else (padded * bits // 16, torch.int16)
    return torch.zeros((shape.weight_rows, size), dtype=dtype, device=device), padded, unit


def make_matrix(
    shape: Shape,
    dtype: DType,
    scheme: QuantScheme | None,
    workspace: Workspace,
    x_dtype: torch.dtype,
    *,
    weight_only: bool = False,
    deterministic: bool = True,
) -> Matrix:
    """The matrix of an op: quantized by ``scheme``, else in ``dtype``.

    A matrix is all that the GPU backend has to know of a scheme.
    """
    match scheme:
        case None:
            return FloatMatrix(shape, dtype, workspace, x_dtype, deterministic)
        case GridScheme():
            return GridMatrix(shape, scheme, workspace, x_dtype, weight_only)
        case GroupScheme() if scheme.sparse:
            if not weight_only:
                raise ValueError("no GPU kernel rounds what it multiplies sparse matrices by")
            return SparseMatrix(shape, scheme, workspace, x_dtype)
        case GroupScheme():
            return GroupMatrix(shape, scheme, workspace, x_dtype, weight_only)
        case BlockScheme():
            if not weight_only:
                raise ValueError("no GPU kernel rounds what it multiplies blocks by")
            return BlockMatrix(shape, scheme, workspace, x_dtype)
        case LatticeScheme():
            return PointMatrix(shape, scheme, workspace, x_dtype)
        case CodebookScheme():
            parts = shape.parts or (shape.weight_rows,)
            counts = [scheme.outlier_count(n, shape.k) for n in parts]
            values = TORCH_DTYPES[dtype]
            return CodebookRowsMatrix(shape, scheme.bits, counts, values, workspace, x_dtype)
