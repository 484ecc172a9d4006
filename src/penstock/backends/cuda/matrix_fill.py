"""Rows of matrices on their way from the host to a device."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.backends.cuda.block_matrix import BlockTable
from penstock.backends.cuda.matrix import Matrix
from penstock.backends.cuda.weights import Uploader, dtype_of
from penstock.interface.weights import WeightValue

_ROWS_BYTES: Final = 64 << 20
"""Bytes of a matrix that are sent to the device, and rounded there, at a time."""


def fill_rows(upload: Uploader, matrix: Matrix, first: int, name: str, value: WeightValue) -> None:
    """Give a matrix its rows from ``first`` on, some at a time: beside it and the copies on
    their way there is little room on a device that the cache fills."""
    if not isinstance(value, np.ndarray):
        matrix.fill_quantized(first, value, name, lambda x: upload.tensor(x, dtype_of(x)))
        return
    rows = max(1, _ROWS_BYTES // max(value[:1].nbytes, 1))
    for start in range(0, len(value), rows):
        some = value[start : start + rows]
        matrix.fill(first + start, upload.tensor(some, dtype_of(some)), name)


def fill_table(upload: Uploader, table: BlockTable, name: str, value: WeightValue) -> None:
    """Give a table in blocks its rows."""
    assert not isinstance(value, np.ndarray)  # what is read in blocks stays in them
    table.fill(value, name, lambda x: upload.tensor(x, dtype_of(x)))
