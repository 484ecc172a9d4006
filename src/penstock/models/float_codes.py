"""Formats of matrices in small floating-point types: read as floats, or in blocks
(``models/in_blocks.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from penstock.errors import ModelError
from penstock.interface.sources import Shape, Stored

Tile = tuple[int | None, int | None]
"""Rows and columns of a matrix that share a scale; None: all."""

IDLE: Final = (
    r".*\.(input_scale|activation_scale|input_scale_ub|input_global_scale|input_zero_point"
    r"|output_scale|[qkv]_scale|kv_scale|prob_scale|weight_shape)"
)
"""Tensors beside such matrices, of activations and of cached keys and values that were rounded,
too: Penstock rounds none of these by constants. ``weight_shape`` is compared where matrices are
read, and has no place beside."""


@dataclass(frozen=True)
class Fp8:
    """E4M3 ``weight`` ``[n, k]``, times a scale of each tile."""

    tile: Tile
    scale: str
    """The last part of the name of the scales' tensor ``[ceil(n / rows), ceil(k / columns)]``."""
    powers: bool = False
    """Whether all scales are powers of two."""
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False

    def __str__(self) -> str:
        rows, columns = self.tile
        if columns is None:
            return f"FP8 by {'matrix' if rows is None else 'row'} read as floats"
        return f"FP8 by {rows} x {columns} read as floats"

    def blocks(self, k: int) -> str | None:
        """The blocks that rows of ``k`` columns are made of; None where they are of none."""
        columns = self.tile[1]
        if self.powers and columns == 32:
            return "MXFP8" if k % 32 == 0 else None
        for size in (128, 32):
            if k % size == 0 and (columns is None or columns % size == 0):
                return f"FP8_{size}"
        return None

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        n, k = shape
        rows, columns = self.tile
        scales = (-(-n // (rows or max(n, 1))), -(-k // (columns or max(k, 1))))
        return (
            Stored(f"{name}.weight", shape, "float8"),
            Stored(f"{name}.{self.scale}", scales, "scale", loose=True),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Fp4:
    """E2M1, two codes a byte, the first in the low bits, times a scale of each group of columns:
    NVFP4 (16 columns, E4M3 and a factor of the whole matrix) and MXFP4 (32, a power of two)."""

    group: int
    weight: str
    """The last part of the name of the codes' tensor, uint8 ``[n, k / 2]``."""
    factor: str | None = None
    """That of the factor's tensor, if there is one; its groups' scales are in E4M3."""
    divides: bool = False
    """Whether scales are divided by the factor."""
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"{'MXFP4' if self.factor is None else 'NVFP4'} read as floats"

    def blocks(self, k: int) -> str | None:
        """The blocks that rows of ``k`` columns are made of; None where they are of none."""
        if k % 32:
            return None
        return "MXFP4" if self.factor is None else "NVFP4_SCALED"

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        n, k = shape
        if k % self.group:
            raise ModelError(
                f"{name} has {k} columns, which are no whole groups of {self.group}; take "
                "config.json and weights from one checkpoint"
            )
        kind: Literal["uint8", "float8"] = "uint8" if self.factor is None else "float8"
        own = (
            Stored(f"{name}.{self.weight}", (n, k // 2), "uint8"),
            Stored(f"{name}.weight_scale", (n, k // self.group), kind),
        )
        if self.factor is None:
            return own
        return (*own, Stored(f"{name}.{self.factor}", (1, 1), "float", loose=True))

    def optional(self, name: str) -> tuple[str, ...]:
        return ()
