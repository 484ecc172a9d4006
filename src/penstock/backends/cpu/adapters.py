"""Adapters in the native executor: tables of all slots, which are written while no step runs.

A table is memory of which the system gives what is touched, so slots that hold nothing, and ranks
below the largest, take none. The layout is that of ``csrc/kernels/adapters.h``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.arrays import DTYPES, as_bytes
from penstock.backends.cpu.binder import Binder
from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.native_ops import ConstantId
from penstock.interface.adapters import Adapter, LowRank
from penstock.models.spec import DType
from penstock.plan import ops

_COLUMNS: Final = 16
"""Rows of a matrix that lie in a panel."""
_LINE: Final = 64
_SCALE: Final = np.dtype([("rank", "<i4"), ("scale", "<f4")])


@dataclass(frozen=True)
class _Place:
    """Where a matrix's part of an adapter goes: the bytes of slot 0, and from slot to slot."""

    table: ConstantId
    offset: int
    slot_bytes: int

    def at(self, slot: int) -> int:
        return self.offset + slot * self.slot_bytes


@dataclass
class _Places:
    """Where an adapter's part for a product with one matrix of the plan goes."""

    target: ops.WeightName
    down: _Place
    scale: _Place
    up: _Place | None = None
    columns: ConstantId | None = None
    """What is multiplied into the columns of ``down``."""
    rows: ConstantId | None = None


@dataclass
class AdapterTables:
    """The tables of a plan's adapters; ``AdapterMemory`` once all ops are appended."""

    native: NativeExecutor
    slots: int
    rank: int
    element: DType
    _places: dict[tuple[ops.BufferName, int], _Places] = field(default_factory=dict)
    """Where adapters go, by the buffer between the two ops and the part's number."""
    _scales: dict[ops.BufferName, tuple[ConstantId, int]] = field(default_factory=dict)
    """The table of each buffer between the two ops, and its number of parts."""

    @classmethod
    def of(cls, binder: Binder) -> AdapterTables | None:
        slots = binder.plan.adapters
        if slots is None:
            return None
        element: DType = "bfloat16" if binder.plan.weight_dtype == "bfloat16" else "float32"
        return cls(binder.native, slots.count, slots.rank, element)

    def append_down(self, b: Binder, op: ops.AdapterDown) -> None:
        parts = len(op.parts)
        part_bytes = _down_bytes(self.element, op.rank, op.k)
        weights = self.native.add_table(self.slots * parts * part_bytes)
        scales = self.native.add_table(self.slots * parts * _SCALE.itemsize)
        self._scales[op.low] = scales, parts
        factors = b.optional_weight(op.factors)
        for i, part in enumerate(op.parts):
            self._places[op.low, i] = _Places(
                part.target,
                _Place(weights, i * part_bytes, parts * part_bytes),
                _Place(scales, i * _SCALE.itemsize, parts * _SCALE.itemsize),
                columns=factors,
            )
        self.native.append_adapter_down(
            x=b.buffers[op.x],
            low=b.buffers[op.low],
            slots=self.slots,
            rank=op.rank,
            parts=parts,
            elem=self.element,
            weights=weights,
            scales=scales,
        )

    def append_up(self, b: Binder, op: ops.AdapterUp) -> None:
        scales, parts = self._scales[op.low]
        sizes = [_up_bytes(self.element, op.rank, part.n) for part in op.parts]
        weights = self.native.add_table(self.slots * sum(sizes))
        factors = b.optional_weight(op.factors)
        for i in range(len(op.parts)):
            places = self._places[op.low, op.at + i]
            places.up = _Place(weights, sum(sizes[:i]), sum(sizes))
            places.rows = factors
        self.native.append_adapter_up(
            low=b.buffers[op.low],
            out=b.buffers[op.out],
            slots=self.slots,
            rank=op.rank,
            columns=[part.n for part in op.parts],
            at=op.at,
            parts=parts,
            elem=self.element,
            weights=weights,
            scales=scales,
        )

    def write(self, slot: int, adapter: Adapter) -> None:
        """As ``AdapterMemory``."""
        for places in self._places.values():
            own = adapter.matrices.get(places.target)
            scale = np.zeros(1, _SCALE)
            if own is not None:
                scale[0] = own.rank, own.scale
                self._write_matrices(slot, places, own)
            self._fill(places.scale, slot, scale)

    def _write_matrices(self, slot: int, places: _Places, own: LowRank) -> None:
        assert places.up is not None, "both ops of an adapter are appended"
        dtype = DTYPES[self.element]
        down, up = own.down.astype(np.float32), own.up.astype(np.float32)
        if places.columns is not None:
            down *= self._numbers(places.columns)
        if places.rows is not None:
            up *= self._numbers(places.rows)[:, None]
        self._fill(places.down, slot, packed_down(down.astype(dtype)))
        self._fill(places.up, slot, packed_up(up.astype(dtype)))

    def _numbers(self, constant: ConstantId) -> NDArray[np.float32]:
        return self.native.constant_copy(constant).view(np.float32)

    def _fill(self, place: _Place, slot: int, values: NDArray[Any]) -> None:
        self.native.fill_constant(place.table, place.at(slot), as_bytes(values))


def packed_down(matrix: NDArray[Any]) -> NDArray[Any]:
    """``[rank, k]`` in panels of 16 rows, each in lines of a column, or of two where these take two
    bytes."""
    rank, k = matrix.shape
    pair = 4 // matrix.itemsize
    padded = np.zeros((-(-rank // _COLUMNS) * _COLUMNS, -(-k // pair) * pair), matrix.dtype)
    padded[:rank, :k] = matrix
    return padded.reshape(-1, _COLUMNS, padded.shape[1] // pair, pair).transpose(0, 2, 1, 3)


def packed_up(matrix: NDArray[Any]) -> NDArray[Any]:
    """``[n, rank]`` in panels of 16 rows, each in lines of a column."""
    n, rank = matrix.shape
    padded = np.zeros((-(-n // _COLUMNS) * _COLUMNS, rank), matrix.dtype)
    padded[:n] = matrix
    return padded.reshape(-1, _COLUMNS, rank).transpose(0, 2, 1)


def _down_bytes(element: DType, rank: int, k: int) -> int:
    pair = 4 // DTYPES[element].itemsize
    return -(-rank // _COLUMNS) * -(-k // pair) * _LINE


def _up_bytes(element: DType, rank: int, n: int) -> int:
    return -(-n // _COLUMNS) * _COLUMNS * rank * DTYPES[element].itemsize
