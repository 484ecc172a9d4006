"""Handles of buffers, weights and tables, for the functions that append ops to a native
executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.arrays import DTYPES, as_bytes
from penstock.backends.cpu.forms import form_of, table_form
from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.matrix_form import MatrixPart
from penstock.backends.cpu.native_ops import BufferId, ConstantId, MatrixId
from penstock.backends.cpu.rope_tables import RopeTables
from penstock.backends.cpu.tune import Product
from penstock.backends.fills import ByRows, Fill
from penstock.interface.weights import WeightValue
from penstock.plan import ops
from penstock.plan.key_columns import KeyColumns
from penstock.plan.plan import Plan
from penstock.plan.tied import tied_product
from penstock.quant import GroupTensor, LatticeMatrix
from penstock.quant.paley import paley_matrix
from penstock.quant.scheme import TableScheme
from penstock.quant.turn import Turn

PANEL_COLUMNS: Final = 16
"""Rows of a matrix that are packed together (``csrc/kernels/gemm.h``)."""


_ORDER: Final = np.dtype(np.int32)

Put = Callable[[WeightValue], None]


class Binder:
    """Translates what the ops of ``plan`` name into handles of ``native``.

    Weights are reserved as ops ask for them, in the order of ``regions``, and filled later.
    """

    def __init__(self, plan: Plan, native: NativeExecutor) -> None:
        self.plan = plan
        self.native = native
        self.buffers: dict[ops.BufferName, BufferId] = {}
        self.regions: list[str] = []
        """One entry for each of the executor's regions: the names of its weights, joined by
        ``+``."""
        self.fills: list[Fill] = []
        self._matrices: dict[str, list[tuple[MatrixId, int, bool]]] = {}
        """The matrices by shape and format: each with its region and whether it multiplies selected
        rows only."""
        self._tables: dict[ops.WeightName, MatrixId] = {}
        """Packed tables that a product multiplies by, too."""
        self._orders: dict[ops.WeightName, ConstantId] = {}
        self.rope_tables = RopeTables(native, plan.max_positions)
        self._turns: dict[Turn, tuple[ConstantId, ConstantId | None]] = {}
        self._ropes: dict[int, tuple[ConstantId, ConstantId]] = {}

    def products(self) -> list[Product]:
        """Return the matrices, grouped by shape and format."""
        sizes = self.native.region_bytes
        return [
            Product(
                name,
                tuple(matrix for matrix, _, _ in alike),
                sizes[alike[0][1]],
                all(logits for _, _, logits in alike),
            )
            for name, alike in self._matrices.items()
        ]

    def packed_table(self, op: ops.Embed, scheme: TableScheme) -> MatrixId:
        """The packed matrix of a table in blocks or groups: that of the product with it, where
        there is one."""
        tied = tied_product(self.plan, op)
        if tied is not None:
            matrix = self.matrix(tied)
            self._tables[op.weight] = matrix
            return matrix
        form = table_form(scheme)
        rows, columns = self.plan.weights[op.weight].shape
        matrix = form.add_table(self.native, rows, columns)
        self.regions.append(op.weight)
        part = MatrixPart(self.native, matrix, 0, op.weight)
        put = ByRows(rows, columns, partial(form.pack_from, part))
        self.fills.append(Fill(op.weight, put))
        return matrix

    def matrix(self, op: ops.Linear) -> MatrixId:
        """The packed matrix of a product, its parts joined."""
        if len(op.parts) == 1 and op.parts[0].weight in self._tables:
            return self._tables[op.parts[0].weight]
        native = self.native
        form = form_of(op.scheme, self.plan.weight_dtype)
        matrix = form.add(native, op, 1)
        if not op.weight_only:  # whose products have nothing to tune
            shape = f"{form} {'2x' if op.gated is not None else ''}{op.n}x{op.k}"
            logits = self.plan.buffers[op.out].rows.base != "T"
            self._matrices.setdefault(shape, []).append((matrix, len(self.regions), logits))
        self.regions.append("+".join(part.weight for part in op.parts))
        first = 0
        rows = tuple(part.n for part in op.parts)
        for i, part in enumerate(op.parts):
            place = MatrixPart(native, matrix, first, part.weight, rows[:i])
            put: Put = partial(form.pack, place)
            if part.weight in self._orders:  # that an op before reads
                put = partial(self._fill_in_order, self._orders.pop(part.weight), 0, put)
            elif op.gated is None:  # whose rows would lie among those of another matrix
                put = ByRows(part.n, op.k, partial(form.pack_from, place))
            self.fills.append(Fill(part.weight, put))
            first += part.n
        return matrix

    def order(self, name: ops.WeightName, columns: int) -> ConstantId:
        """The order of the columns of the matrix ``name``, or of each of a stack, with which a
        product to come is."""
        number = math.prod(self.plan.weights[name].shape[:-2])
        constant = self.native.reserve_constant(number * columns * _ORDER.itemsize)
        self.regions.append(f"{name} (order)")
        self._orders[name] = constant
        return constant

    def head_matrix(self, op: ops.HeadLinear) -> MatrixId:
        """The packed matrices of a product of heads, one after another."""
        dtype = self.plan.weight_dtype
        rows = -(-op.n // PANEL_COLUMNS) * PANEL_COLUMNS
        matrix = self.native.add_matrix(dtype, op.heads * rows, op.k, False)
        self.regions.append(op.weight)
        self.fills.append(Fill(op.weight, partial(self._pack_heads, matrix, op, rows)))
        return matrix

    def experts(self, op: ops.ExpertLinear) -> MatrixId:
        """The packed matrices of all experts, the parts of each joined."""
        form = form_of(op.scheme, self.plan.weight_dtype)
        number = self.plan.weights[op.parts[0].weight].shape[0]
        matrix = form.add(self.native, op, number)
        self.regions.append("+".join(part.weight for part in op.parts))
        orders = {part.weight: self._orders.pop(part.weight, None) for part in op.parts}
        first = 0
        for expert in range(number):
            for part in op.parts:
                put: Put = partial(form.pack, MatrixPart(self.native, matrix, first, part.weight))
                order = orders[part.weight]
                if order is not None:  # that an op before reads
                    put = partial(self._fill_in_order, order, expert * op.k, put)
                self.fills.append(Fill(part.weight, put, expert))
                first += part.n
        return matrix

    def bias(self, op: ops.Linear) -> ConstantId | None:
        """The parts' biases joined, zeros where one has none; None if none has any."""
        if all(part.bias is None for part in op.parts):
            return None
        return self._reserve([(part.bias, part.n) for part in op.parts], DTYPES["float32"])

    def expert_bias(self, op: ops.ExpertLinear) -> ConstantId | None:
        """The parts' biases joined expert by expert, zeros where one has none; None if none has
        any."""
        named = [part.bias for part in op.parts if part.bias is not None]
        if not named:
            return None
        number, width = self.plan.weights[named[0]].shape[0], sum(part.n for part in op.parts)
        constant = self.native.reserve_constant(number * width * 4)
        self.regions.append("+".join(named))
        first = 0
        for part in op.parts:
            if part.bias is not None:
                put = partial(self._fill_rows, constant, first, width)
                self.fills.append(Fill(part.bias, put))
            first += part.n
        return constant

    def weight(self, name: ops.WeightName) -> ConstantId:
        """A weight as float32."""
        return self._reserve([(name, self._size(name))], DTYPES["float32"])

    def key_columns(self, columns: KeyColumns) -> ConstantId:
        """The centers and factors of a layer's keys."""
        return self._reserve([(columns.name, columns.size)], DTYPES["float32"])

    def transposed(self, name: ops.WeightName) -> ConstantId:
        """A matrix as float32, column by column."""
        constant = self.native.reserve_constant(self._size(name) * DTYPES["float32"].itemsize)
        self.regions.append(name)
        self.fills.append(Fill(name, partial(self._fill_transposed, constant)))
        return constant

    def points_scale(self, name: ops.WeightName) -> ConstantId:
        """The scale of a matrix of lattice points."""
        constant = self.native.reserve_constant(4)
        self.regions.append(f"{name} (scale)")
        self.fills.append(Fill(name, partial(self._fill_scale, constant)))
        return constant

    def turn(self, turn: Turn) -> tuple[ConstantId, ConstantId | None]:
        """A turn's signs and the matrix of its base as kernels read it, made once."""
        if turn not in self._turns:
            matrix = paley_matrix(turn.base)
            if matrix is not None and turn.side == "input":
                matrix = matrix.T  # kernels take a column of it after another
            self._turns[turn] = (
                self.floats(turn.signs),
                None if matrix is None else self.floats(np.ascontiguousarray(matrix)),
            )
        return self._turns[turn]

    def optional_weight(self, name: ops.WeightName | None) -> ConstantId | None:
        return None if name is None else self.weight(name)

    def table(self, name: ops.WeightName) -> ConstantId:
        """A matrix in the element type that the plan's weights have, row by row."""
        dtype = DTYPES[self.plan.weight_dtype]
        rows, columns = self.plan.weights[name].shape
        constant = self.native.reserve_constant(rows * columns * dtype.itemsize)
        self.regions.append(name)
        put = partial(self._fill_table, constant, columns, dtype)
        self.fills.append(Fill(name, ByRows(rows, columns, put)))
        return constant

    def floats(self, values: Sequence[float] | NDArray[np.float32]) -> ConstantId:
        """Numbers that the plan itself holds, as float32."""
        return self.native.add_constant(as_bytes(np.asarray(values, np.float32)))

    def rope(self, index: int) -> tuple[ConstantId, ConstantId]:
        """Cosine and sine of ``Plan.ropes[index]``, made once."""
        if index not in self._ropes:
            self._ropes[index] = self.rope_tables.add(self.plan.ropes[index])
        return self._ropes[index]

    def _size(self, name: ops.WeightName) -> int:
        return math.prod(self.plan.weights[name].shape)

    def _reserve(
        self, parts: Sequence[tuple[ops.WeightName | None, int]], dtype: np.dtype[Any]
    ) -> ConstantId:
        """Reserve a constant for weights of so many elements in a row; parts without a name stay
        zero."""
        constant = self.native.reserve_constant(sum(n for _, n in parts) * dtype.itemsize)
        self.regions.append("+".join(name for name, _ in parts if name is not None))
        offset = 0
        for name, n in parts:
            if name is not None:
                self.fills.append(Fill(name, partial(self._fill, constant, offset, dtype)))
            offset += n * dtype.itemsize
        return constant

    # What fills call, with the weight's array last.

    def _fill_in_order(
        self, constant: ConstantId, first: int, put: Put, value: WeightValue
    ) -> None:
        """Put the matrix where its product reads it, and the order of its columns behind ``first``
        others."""
        order = value.order if isinstance(value, GroupTensor) else None
        if isinstance(value, GroupTensor):
            value = replace(value, order=None)
        places = np.arange(value.shape[1]) if order is None else order
        at = first * _ORDER.itemsize
        self.native.fill_constant(constant, at, as_bytes(places.astype(_ORDER)))
        put(value)

    def _pack_heads(
        self, matrix: MatrixId, op: ops.HeadLinear, rows: int, array: NDArray[Any]
    ) -> None:
        """Pack each head's matrix ``[n, k]``, ``rows`` behind the one before."""
        heads = array.astype(DTYPES[self.plan.weight_dtype], copy=False).reshape(op.heads, -1)
        for h, head in enumerate(heads):
            one = head.reshape(op.k, op.n).T if op.transposed else head.reshape(op.n, op.k)
            self.native.pack_rows(matrix, h * rows, op.n, as_bytes(np.ascontiguousarray(one)))

    def _fill_scale(self, constant: ConstantId, value: WeightValue) -> None:
        assert isinstance(value, LatticeMatrix)
        self.native.fill_constant(constant, 0, as_bytes(np.array([value.scale], np.float32)))

    def _fill_rows(self, constant: ConstantId, first: int, width: int, array: NDArray[Any]) -> None:
        for row, values in enumerate(array.astype(np.float32, copy=False)):
            self.native.fill_constant(constant, (row * width + first) * 4, as_bytes(values))

    def _fill_transposed(self, constant: ConstantId, array: NDArray[Any]) -> None:
        values = np.ascontiguousarray(array.astype(np.float32, copy=False).T)
        self.native.fill_constant(constant, 0, as_bytes(values))

    def _fill_table(
        self,
        constant: ConstantId,
        columns: int,
        dtype: np.dtype[Any],
        array: NDArray[Any],
        first: int,
    ) -> None:
        self._fill(constant, first * columns * dtype.itemsize, dtype, array)

    def _fill(
        self, constant: ConstantId, offset: int, dtype: np.dtype[Any], array: NDArray[Any]
    ) -> None:
        self.native.fill_constant(constant, offset, as_bytes(array.astype(dtype, copy=False)))
