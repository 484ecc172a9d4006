"""How checkpoints store matrices in FP8, MXFP4 and NVFP4: as tensors of codes and of scales.

They are read as floats, or in blocks where a backend multiplies by these (``models/in_blocks.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.errors import ModelError
from penstock.interface.sources import Shape, Stored

Tile = tuple[int | None, int | None]
"""Rows and columns of a matrix that share a scale; None: all."""

NVFP4_GROUP: Final = 16
"""Columns that share a scale in NVFP4."""
_MXFP4_GROUP: Final = 32

IDLE: Final = (
    r".*\.(input_scale|activation_scale|input_scale_ub|input_global_scale|input_zero_point"
    r"|output_scale|[qkv]_scale|kv_scale|prob_scale|weight_shape)"
)
"""Tensors beside such matrices, of activations and of cached keys and values that were rounded,
too: Penstock rounds none of these by constants. ``weight_shape`` is compared where matrices are
read, and has no place beside."""
KV_SCALES_UNUSED: Final = (
    "the checkpoint has scales for a KV cache in FP8, which are not used: keys and values are "
    "cached as --kv-cache-dtype says, more exactly"
)
"""What a user is told of a checkpoint with such scales."""


@dataclass(frozen=True)
class Fp8:
    """FP8: E4M3 ``weight`` ``[n, k]``, with a scale for each tile of the matrix."""

    tile: Tile
    scale: str
    """The last part of the name of the scales' tensor ``[ceil(n / rows), ceil(k / columns)]``."""
    powers: bool = False
    """Whether all scales are powers of two."""
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        rows, columns = self.tile
        if columns is None:
            return f"FP8 by {'matrix' if rows is None else 'row'}"
        return f"FP8 by {rows} x {columns}"

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
class Mxfp4:
    """E2M1, two codes a byte, the first in the low bits, times a power of two of each 32 columns
    (OCP Microscaling Formats, version 1.0). A layer's experts may be in one such stack."""

    codes: str = ".weight_packed"
    """What the name of the codes' tensor, uint8 ``[..., n, k / 2]``, has behind the matrix's."""
    scales: str = ".weight_scale"
    """What that of the powers has, uint8 ``[..., n, k / 32]``, each 127 more than it stands for."""
    in_groups: bool = False
    """Whether the codes of each group are apart, as ``[..., n, k / 32, 16]``."""
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = True

    def __str__(self) -> str:
        return "MXFP4"

    def blocks(self, k: int) -> str | None:
        """The blocks that rows of ``k`` columns are made of; None where they are of none."""
        return None if k % _MXFP4_GROUP else "MXFP4"

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        *stack, n, k = shape
        groups = _groups(name, k, _MXFP4_GROUP)
        codes = (n, groups, _MXFP4_GROUP // 2) if self.in_groups else (n, k // 2)
        return (
            Stored(f"{name}{self.codes}", (*stack, *codes), "uint8"),
            Stored(f"{name}{self.scales}", (*stack, n, groups), "uint8"),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Nvfp4:
    """E2M1, two codes a byte, the first in the low bits, times a scale of each 16 columns, in E4M3,
    and a factor of the whole matrix."""

    codes: str
    """The last part of the name of the codes' tensor, uint8 ``[n, k / 2]``."""
    factor: str
    """That of the factor's tensor."""
    divides: bool = False
    """Whether scales are divided by the factor."""
    scheme: ClassVar[None] = None
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return "NVFP4"

    def blocks(self, k: int) -> str | None:
        """The blocks that rows of ``k`` columns are made of; None where they are of none."""
        return None if k % 32 else "NVFP4_SCALED"

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        """The tensors of matrix ``name``. Raises ModelError where it cannot have been packed."""
        n, k = shape
        return (
            Stored(f"{name}.{self.codes}", (n, k // 2), "uint8"),
            Stored(f"{name}.weight_scale", (n, _groups(name, k, NVFP4_GROUP)), "float8"),
            Stored(f"{name}.{self.factor}", (1, 1), "float", loose=True),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()


def _groups(name: str, k: int, size: int) -> int:
    """The groups of a row of ``k`` columns. Raises ModelError where they are not whole."""
    if k % size:
        raise ModelError(
            f"{name} has {k} columns, which are no whole groups of {size}; take config.json and "
            "weights from one checkpoint"
        )
    return k // size
