"""Matrices of which two of each four weights are 0, as floats or as integers of 8 bits, with the
zeros or, as compressed-tensors' ``sparse-24-bitmask``, without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.models.compressed_tensors import METHOD
from penstock.models.sparse24 import FORMAT, KEPT, OF
from penstock.models.spec import DType
from penstock.quantize.forms import compressed_tensors, w8a8
from penstock.quantize.forms.form import Arrays
from penstock.quantize.grid import F32, IntegerGrid, IntegerMatrix
from penstock.quantize.sparsity import by_magnitude
from penstock.weights.tensor_file import NUMPY_DTYPES


@dataclass(frozen=True)
class SparseMatrix:
    """A matrix in floats, and how it is stored."""

    values: F32
    form: SparseFloats

    def dequantize(self) -> F32:
        """The values, ``[n, k]``."""
        return self.values

    def arrays(self) -> Arrays:
        """The tensors, by what follows the module's name and a dot."""
        stored = self.values.astype(NUMPY_DTYPES[self.form.dtype])
        return compressed(stored, self.values) if self.form.compressed else {"weight": stored}


@dataclass(frozen=True)
class SparseFloats:
    """Floats of the checkpoint's own type."""

    dtype: DType
    compressed: bool
    """Whether zeros are left out; else the checkpoint is one like any other in floats."""

    group_size: None = None

    def config(self, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it; where zeros are stored, it
        tells of nothing but which matrices are meant."""
        return {"quant_method": METHOD, "sparsity_config": _sparsity(floats)}

    def of_joined(self, matrices: Sequence[F32]) -> SparseFloats:
        """Matrices share nothing."""
        return self

    def round(self, matrix: F32, name: str) -> SparseMatrix:
        """The two largest of each four weights, as they are."""
        kept = np.where(by_magnitude(matrix), matrix, np.float32(0))
        return self.made(kept)

    def made(self, values: F32) -> SparseMatrix:
        """A matrix that is sparse already, of values that the type has."""
        return SparseMatrix(values.astype(NUMPY_DTYPES[self.dtype]).astype(np.float32), self)


class PrunedStorage:
    """Integers as compressed-tensors packs them, zeros too, with a note that two of each four are
    zeros: a storage of :mod:`~penstock.quantize.forms.integers`."""

    def scale_dtype(self, weights: DType) -> DType:
        """The weights' own."""
        return compressed_tensors.scale_dtype(weights)

    def config(self, grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """As :meth:`~penstock.quantize.forms.form.Form.config` has it."""
        sparsity = _sparsity(floats, "dense")
        return {**compressed_tensors.config(grid, by_index, floats), "sparsity_config": sparsity}

    def arrays(self, matrix: IntegerMatrix) -> Arrays:
        """The tensors of a matrix."""
        return compressed_tensors.arrays(matrix)


class Sparse24Storage:
    """Integers of 8 bits with a scale for each row, without the zeros: a storage of
    :mod:`~penstock.quantize.forms.integers`."""

    def scale_dtype(self, weights: DType) -> DType:
        """The weights' own."""
        return w8a8.scale_dtype(weights)

    def config(self, grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
        """Raises ConfigError for what the format does not have."""
        if grid.bits != 8 or grid.group_size is not None or not grid.symmetric:
            raise ConfigError(
                f"--format {FORMAT} has floats and symmetric integers of 8 bits by rows alone; "
                "take --bits 8 --group-size row, or --format compressed-tensors, which stores zeros"
            )
        return {**w8a8.config(grid, by_index, floats), "sparsity_config": _sparsity(floats)}

    def arrays(self, matrix: IntegerMatrix) -> Arrays:
        """The tensors of a matrix."""
        stored = dict(w8a8.arrays(matrix))
        codes = stored.pop("weight")
        return {**compressed(codes, codes.astype(np.float32)), **stored}


def _sparsity(floats: Sequence[str], form: str = FORMAT) -> dict[str, object]:
    return {
        "format": form,
        "sparsity_structure": "2:4",
        "global_sparsity": KEPT / OF,
        "targets": ["Linear"],
        "ignore": list(floats),
        "registry_requires_subclass": False,
    }


def compressed(stored: NDArray[Any], values: F32) -> Arrays:
    """The tensors of a sparse matrix ``[n, k]``; ``values`` are those of ``stored`` as float32."""
    n, k = stored.shape
    kept = by_magnitude(values)  # of a four with fewer than two weights, zeros as well
    return {
        "compressed": stored[kept].reshape(n, k * KEPT // OF),
        "bitmask": np.packbits(kept, axis=1, bitorder="little"),
        "shape": np.array([[n], [k]], np.int64),
    }
