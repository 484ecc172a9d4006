"""How one quantized matrix is kept in tensors of a checkpoint."""

from __future__ import annotations

from typing import Protocol

from penstock.interface.sources import PackedFormat
from penstock.quant.scheme import QuantScheme


class MatrixFormat(PackedFormat, Protocol):
    """How one quantized matrix is kept in tensors of a checkpoint, and what it is then."""

    @property
    def scheme(self) -> QuantScheme | None:
        """The scheme of the matrix as it is read; None: it becomes floats."""
        ...
