"""Integers of 4 bits as AWQ's tools store them (:mod:`penstock.models.awq` says how)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.models.awq import METHOD
from penstock.models.spec import DType
from penstock.quantize.forms.form import Arrays
from penstock.quantize.forms.words import words
from penstock.quantize.grid import IntegerGrid, IntegerMatrix
from penstock.weights.tensor_file import NUMPY_DTYPES

_COLUMNS: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of each of a word's codes, from the lowest bits on."""


def scale_dtype(weights: DType) -> DType:
    """float16, whatever the weights have: what the tools' kernels read."""
    return "float16"


def config(grid: IntegerGrid, by_index: bool, floats: Sequence[str]) -> dict[str, object]:
    """Raises ConfigError for what the format does not have."""
    if grid.bits != 4:
        raise ConfigError(f"--format awq has 4 bits alone, not {grid.bits}; take another --format")
    if by_index:
        raise ConfigError("--format awq has groups of neighbours alone; take --act-order static")
    return {
        "quant_method": METHOD,
        "bits": grid.bits,
        "group_size": grid.group_size or -1,
        # Symmetric codes, too, have zero points, all of them 8: few kernels do without.
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(floats) or None,
    }


def arrays(matrix: IntegerMatrix) -> Arrays:
    """The tensors of a matrix."""
    return {
        "qweight": _along_rows(matrix.codes),
        "qzeros": _along_rows(matrix.zeros),
        "scales": matrix.scales.T.astype(NUMPY_DTYPES[matrix.grid.scale_dtype]),
    }


def _along_rows(codes: NDArray[Any]) -> NDArray[np.int32]:
    """Codes ``[n, count]`` in words ``[count, n / 8]``."""
    n, count = codes.shape
    ordered = codes.T.reshape(count, n // 8, 8)[:, :, _COLUMNS].reshape(count, n)
    return words(ordered, 4)
