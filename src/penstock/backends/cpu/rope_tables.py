"""Rotary tables of a native executor, filled as far as contexts have come."""

from __future__ import annotations

from penstock.backends.cpu.arrays import as_bytes
from penstock.backends.cpu.interface import NativeExecutor
from penstock.backends.cpu.native_ops import ConstantId
from penstock.models.rope import check_computable, positions_to_fill, rope_rows
from penstock.models.spec import RopeSpec


class RopeTables:
    """Cosines and sines of a plan's rotations in memory of ``native``.

    Tables have room for all of ``max_positions``, of which the system gives what is touched. A step
    with a position beyond the filled rows is refused with IndexError before it changes anything,
    and runs once :meth:`reach` has filled more.
    """

    def __init__(self, native: NativeExecutor, max_positions: int) -> None:
        self._native = native
        self._max_positions = max_positions
        self._filled = positions_to_fill(0, max_positions)
        self._tables: list[tuple[RopeSpec, tuple[ConstantId, ConstantId]]] = []
        native.set_known_positions(self._filled)

    def add(self, spec: RopeSpec) -> tuple[ConstantId, ConstantId]:
        """Cosine and sine of a rotation, filled as far as the others."""
        check_computable(spec, self._max_positions)
        size = self._max_positions * (spec.dim // 2) * 4
        pair = self._native.add_table(size), self._native.add_table(size)
        self._tables.append((spec, pair))
        self._fill(spec, pair, 0, self._filled)
        return pair

    def reach(self, positions: int) -> None:
        """Fill all tables for so many positions, at least."""
        filled = positions_to_fill(positions, self._max_positions)
        if filled <= self._filled:
            return
        for spec, pair in self._tables:
            self._fill(spec, pair, self._filled, filled)
        self._filled = filled
        self._native.set_known_positions(filled)

    def _fill(
        self, spec: RopeSpec, pair: tuple[ConstantId, ConstantId], first: int, end: int
    ) -> None:
        offset = first * (spec.dim // 2) * 4
        for table, rows in zip(pair, rope_rows(spec, first, end), strict=True):
            self._native.fill_constant(table, offset, as_bytes(rows))
