"""How one quantized matrix is kept in tensors of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.interface.sources import PackedFormat, Shape, Stored
from penstock.quant.scheme import QuantScheme


class MatrixFormat(PackedFormat, Protocol):
    """How one quantized matrix is kept in tensors of a checkpoint, and what it is then."""

    @property
    def scheme(self) -> QuantScheme | None:
        """The scheme of the matrix as it is read; None: it becomes floats."""
        ...


@dataclass(frozen=True)
class EitherFormat:
    """Formats of one kind that a configuration does not tell apart, and a matrix's tensors do. All
    have the same scheme."""

    formats: tuple[MatrixFormat, ...]

    def __str__(self) -> str:
        return str(self.formats[0])

    @property
    def scheme(self) -> QuantScheme | None:
        return self.formats[0].scheme

    @property
    def any_order(self) -> bool:
        return False

    @property
    def stacks(self) -> bool:
        return False

    def tensors(self, name: str, shape: Shape) -> tuple[Stored, ...]:
        return self.formats[0].tensors(name, shape)

    def optional(self, name: str) -> tuple[str, ...]:
        return ()
