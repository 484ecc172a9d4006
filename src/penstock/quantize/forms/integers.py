"""Whole numbers with a scale for each group of columns, in the formats that store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import WeightError
from penstock.models.spec import DType
from penstock.quantize.forms import awq, compressed_tensors, gptq
from penstock.quantize.forms.form import Arrays
from penstock.quantize.grid import F32, IntegerGrid, IntegerMatrix


class Storage(Protocol):
    """A module of functions for each format."""

    def scale_dtype(self, weights: DType) -> DType:
        """The type of scales in a checkpoint whose weights have this one."""
        ...

    def config(self, grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        ...

    def arrays(self, matrix: IntegerMatrix) -> Arrays:
        """The tensors of a matrix, by what follows its module's name and a dot."""
        ...


STORAGES: Final[Mapping[str, Storage]] = {
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
}


@dataclass(frozen=True)
class StoredIntegers:
    """A matrix on a grid, and how it is stored."""

    matrix: IntegerMatrix
    storage: Storage

    def dequantize(self) -> F32:
        """What the codes stand for, ``[n, k]``."""
        return self.matrix.dequantize()

    def arrays(self) -> Arrays:
        """The tensors, by what follows the module's name and a dot."""
        return self.storage.arrays(self.matrix)


@dataclass(frozen=True)
class Integers:
    """A grid, and the format that stores matrices on it."""

    grid: IntegerGrid
    storage: Storage

    @property
    def group_size(self) -> int | None:
        return self.grid.group_size

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        return self.storage.config(self.grid, by_index, floats)

    def of_joined(self, matrices: Sequence[F32]) -> Integers:
        """Matrices share nothing."""
        return self

    def round(self, matrix: F32, name: str) -> StoredIntegers:
        """Round to nearest, each group by what spans it."""
        grouped = self.grid.grouped(matrix)
        return self.coded(self.grid.matrix(grouped, *self.grid.fit(grouped)), name)

    def coded(self, matrix: IntegerMatrix, name: str) -> StoredIntegers:
        """The matrix as it is stored. Raises WeightError, naming it, where a scale is too large for
        its type."""
        if not matrix.has_finite_scales:
            raise WeightError(
                f"{name} has values so large that their scale is no {self.grid.scale_dtype}; take "
                "a --format whose scales have another type"
            )
        return StoredIntegers(matrix, self.storage)
