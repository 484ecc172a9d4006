"""Weights whose values are looked at on their way to a backend."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.errors import WeightError
from penstock.interface.weights import WeightValue
from penstock.quant import BlockTensor
from penstock.weights.checkpoint import CheckpointWeights

_ROWS = 64
"""Rows of blocks that are decoded at a time, to look whether they are zeros."""


class CheckedWeights:
    """A WeightSource that gives what ``source`` does.

    Vectors (norms, biases) with a NaN or an infinity are refused, since the model would compute
    nothing, and matrices of zeros are counted. Of other matrices little more than the first row is
    looked at: what is in blocks or quantized has been checked by its reader, and rounding refuses
    what is not finite.
    """

    def __init__(self, source: CheckpointWeights) -> None:
        self._source = source
        self._zeros: dict[str, None] = {}
        self._rows: dict[str, int] = {}

    def get(self, name: str) -> WeightValue:
        value = self._source.get(name)
        if isinstance(value, np.ndarray) and value.ndim == 1 and not np.isfinite(value).all():
            raise WeightError(
                f"tensor {self._source.tensor_of(name)!r} has values that are not finite, so that "
                "the model would compute nothing; download it again, or convert the model again"
            )
        if _is_zero(value):
            self._zeros[repr(self._source.tensor_of(name))] = None
        return value

    def member(self, name: str, index: int) -> WeightValue:
        value = self._source.member(name, index)
        if _is_zero(value):
            self._zeros[f"{self._source.tensor_of(name)!r} (matrix {index})"] = None
        return value

    def has_rows_apart(self, name: str) -> bool:
        return self._source.has_rows_apart(name)

    def rows(self, name: str, first: int, end: int) -> WeightValue:
        value = self._source.rows(name, first, end)
        if _is_zero(value):
            # Read once more, where an op looks up what another multiplies by, they count again.
            self._rows[name] = self._rows.get(name, 0) + end - first
            if self._rows[name] >= self._source.num_rows(name):
                self._zeros[repr(self._source.tensor_of(name))] = None
        return value

    def names(self) -> Iterable[str]:
        return self._source.names()

    def warning(self) -> str | None:
        """What is odd in all that has been read; None: nothing is."""
        zeros = list(self._zeros)
        if not zeros:
            return None
        shown = ", ".join(zeros[:3]) + (", ..." if len(zeros) > 3 else "")
        return (
            f"{len(zeros)} matri{'x' if len(zeros) == 1 else 'ces'} of zeros alone: {shown}; "
            "unless the model was pruned, its file is damaged"
        )


def _is_zero(value: WeightValue) -> bool:
    """Whether a matrix has no other values than 0; False for a vector."""
    if isinstance(value, BlockTensor):
        rows = len(value.blocks)
        runs = ((first, min(first + _ROWS, rows)) for first in range(0, rows, _ROWS))
        return not value.format.decode(value.blocks[0, :1]).any() and not any(
            value.rows(run).dequantize().any() for run in runs
        )
    if not isinstance(value, np.ndarray) or value.ndim < 2:
        return False
    return not value[0].any() and not value.any()
