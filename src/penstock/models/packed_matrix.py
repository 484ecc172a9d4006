"""How a checkpoint stores one quantized matrix, and the scheme that it has then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.interface.sources import PackedFormat, Shape, Stored
from penstock.quant.scheme import QuantScheme


class MatrixFormat(PackedFormat, Protocol):
    """How a checkpoint stores one quantized matrix, and the scheme that it has then."""

    @property
    def scheme(self) -> QuantScheme | None:
        """The scheme of the matrix as it is read; None: it becomes floats."""
        ...


@dataclass(frozen=True)
class EitherFormat:
    """Formats that a configuration leaves open, such as two names of the scales' tensor: a matrix
    has the first all of whose tensors are there. All have one scheme."""

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
