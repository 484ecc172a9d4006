"""Matrices of integers as compressed-tensors stores them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from penstock.interface.sources import Shape, Stored
from penstock.models.integer_groups import (
    StoredBits,
    group_of,
    is_kept,
    kept_bits,
    require_whole,
)
from penstock.models.sparse24 import compressed
from penstock.quant.scheme import SPARSE_OF_FLOATS, GroupScheme, SparseFormat

Span = int | Literal["row", "matrix"]
"""What shares a scale: so many columns of a row, a row, or the matrix."""


@dataclass(frozen=True)
class Integers:
    """``(code - zero) * scale`` of signed codes.

    ``weight_packed`` int32 ``[n, ceil(k * bits / 32)]`` has codes plus ``2 ** (bits - 1)``, the
    first in the lowest bits, or ``weight`` int8 ``[n, k]`` the codes. ``weight_scale`` is
    ``[n, groups]``, and so is ``weight_zero_point``, packed along n where codes are.
    """

    bits: StoredBits
    span: Span
    zero_points: bool
    packed: bool
    stacks: ClassVar[bool] = False
    any_order: bool = False
    """Whether ``weight_g_idx`` says which group each column is in."""
    sparse: bool = False
    """Whether two codes of each four are stored, in the place of ``weight``, as
    :mod:`~penstock.models.sparse24` has it; the others stand for 0."""
    pruned: bool = False
    """Whether two codes of each four stand for 0, however they are stored."""
    held_sparse: SparseFormat | None = None
    """How a backend that holds the other two alone calls that; None: all are held."""

    def __str__(self) -> str:
        if self.scheme is None:
            return f"int{self.bits} by {self.span}"
        return str(self.scheme)

    @property
    def group(self) -> int | None:
        return self.span if isinstance(self.span, int) else None

    @property
    def scheme(self) -> GroupScheme | None:
        """Symmetric codes of 8 bits use -128, which only schemes with zero points have, and sparse
        ones that multiply floats. Groups that no kernel has become floats."""
        if not is_kept(self.group):
            return None
        lowest = self.bits == 8 and self.held_sparse != SPARSE_OF_FLOATS
        zero_points, sparse = self.zero_points or lowest, self.held_sparse is not None
        return GroupScheme(kept_bits(self.bits), group_of(self.group), zero_points, sparse)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        n, k = shape
        require_whole(name, k, self.group, "compressed-tensors")
        groups = 1 if self.group is None else k // self.group
        scales = (1 if self.span == "matrix" else n, groups)
        own = [*self._codes(name, shape), Stored(f"{name}.weight_scale", scales, loose=True)]
        if self.zero_points:
            points = f"{name}.weight_zero_point"
            if self.packed and self.span != "matrix":
                own.append(Stored(points, (self.words(n), groups), "int32", loose=True))
            else:
                own.append(Stored(points, scales, "int8", loose=True))
        if self.any_order:
            own.append(Stored(f"{name}.weight_g_idx", (k,), "integer"))
        return tuple(own)

    def _codes(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        if self.sparse:
            return compressed(name, shape, "int8")
        n, k = shape
        if self.packed:
            return (Stored(f"{name}.weight_packed", (n, self.words(k)), "int32"),)
        return (Stored(f"{name}.weight", shape, "int8"),)

    def words(self, count: int) -> int:
        """Number of words that hold ``count`` codes."""
        return -(-count * self.bits // 32)

    def optional(self, name: str) -> tuple[str, ...]:
        return (f"{name}.shape",) if self.sparse else ()
