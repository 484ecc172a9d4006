"""How checkpoints store matrices whose rows have values of their own: codes, these, outliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.interface.sources import Shape, Stored
from penstock.quant.scheme import CodebookBits, CodebookScheme


@dataclass(frozen=True)
class RowCodebooks:
    """``codebook`` float ``[n, 2 ** bits]`` has the values of the codes of each row, and ``codes``
    int32 ``[n, ceil(k * bits / 32)]`` these, a stream of bits for each row, the first code in the
    lowest bits.

    Weight ``outlier_columns[i]`` of row r is ``outlier_values[i]``, float, whatever its code, for i
    from ``outlier_rows[r]`` to ``outlier_rows[r + 1]``: int32 ``[count]``, ``[count]`` and
    ``[n + 1]``, with the columns of a row ascending.
    """

    bits: CodebookBits
    outliers: float
    """What part of all weights stays in floats."""
    decoded: bool = True
    """Whether the matrix becomes floats as it is read, for backends that do not multiply by it."""
    any_order: ClassVar[bool] = False
    stacks: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"codebooks of {self.bits} bits by row"

    @property
    def kept(self) -> CodebookScheme:
        """The scheme where the matrix is read as it is stored."""
        return CodebookScheme(self.bits, self.outliers)

    @property
    def scheme(self) -> CodebookScheme | None:
        return None if self.decoded else self.kept

    def count(self, shape: Shape) -> int:
        """How many weights of a matrix stay in floats."""
        return self.kept.outlier_count(*shape)

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        n, k = shape
        count = self.count(shape)
        return (
            Stored(f"{name}.codes", (n, -(-k * self.bits // 32)), "int32"),
            Stored(f"{name}.codebook", (n, 1 << self.bits)),
            Stored(f"{name}.outlier_rows", (n + 1,), "int32"),
            Stored(f"{name}.outlier_columns", (count,), "int32"),
            Stored(f"{name}.outlier_values", (count,)),
        )

    def optional(self, name: str) -> tuple[str, ...]:
        return ()
