"""Matrices of which two weights of each four are 0, as compressed-tensors 0.11 stores them without
these: ``sparse-24-bitmask``, which later versions do not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import ModelError
from penstock.interface.sources import Element, Shape, Stored

FORMAT: Final = "sparse-24-bitmask"
OF: Final = 4
"""Columns next to each other, of a row, of which so many are kept:"""
KEPT: Final = 2


@dataclass(frozen=True)
class Sparse24:
    """``compressed`` float ``[n, k / 2]`` has two of each four weights of a row, and bit j of a row
    of ``bitmask`` uint8 ``[n, ceil(k / 8)]``, the lowest of a byte first, says whether column j is
    one of them. ``shape`` int64 ``[2, 1]`` is ``[n, k]``."""

    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return "2:4 sparse floats"

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError for rows that are no whole fours."""
        return compressed(name, shape, "float")

    def optional(self, name: str) -> tuple[str, ...]:
        return (f"{name}.shape",)


def compressed(name: str, shape: Shape, element: Element) -> tuple[Stored, Stored]:
    """What is kept, and the bits that say of which columns it is. Raises ModelError for rows that
    are no whole fours."""
    n, k = shape
    if k % OF:
        raise ModelError(
            f"{name} has {k} columns, which are no whole groups of {OF} as 2:4 sparsity has them; "
            "take config.json and weights from one checkpoint"
        )
    return (
        Stored(f"{name}.compressed", (n, k * KEPT // OF), element),
        Stored(f"{name}.bitmask", (n, -(-k // 8)), "uint8"),
    )
