"""Pools the hidden states of one request, as steps compute them, into one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import RequestError
from penstock.pooling.params import PoolingParams

EMBEDDING_DTYPE = np.dtype("<f4")
"""Data type of the bytes that :meth:`Pooler.vector` returns."""


class Pooler:
    """Pools the rows of a prompt of ``num_tokens`` tokens, of which ``last`` takes one.

    The mean is a sum in float64, row by row in the order of positions. A row is bitwise the same
    however the prompt was cut into steps, and so is then the sum.
    """

    def __init__(self, params: PoolingParams, num_tokens: int) -> None:
        self._params = params
        self._count = num_tokens if params.wants_all_rows else 1
        self._end = num_tokens
        self._next = num_tokens - self._count
        """The position whose row is wanted next; the positions before it are not, or no more."""
        self._sum: NDArray[np.float64] | None = None

    def take(self, first: int, rows: NDArray[Any]) -> None:
        """Add ``rows`` ``[n, hidden size]`` of the positions from ``first`` on.

        Rows that were given before are ignored: a preempted sequence computes some again.
        Raises ValueError if rows before them are missing.
        """
        if first > self._next:
            raise ValueError(f"the rows from position {self._next} to {first - 1} are missing")
        for row in rows[max(0, self._next - first) :]:
            wide = row.astype(np.float64)
            self._sum = wide if self._sum is None else np.add(self._sum, wide, out=self._sum)
            self._next += 1

    def vector(self) -> bytes:
        """The embedding as float32, little endian.

        Raises RequestError if a hidden state is not finite, ValueError if rows are missing.
        """
        if self._sum is None or self._next != self._end:
            raise ValueError(f"the rows from position {self._next} on are missing")
        vector = (self._sum / self._count)[: self._params.dimensions]
        if not np.isfinite(vector).all():
            raise RequestError(
                "the model's hidden states hold NaN or infinite values; the weights may be "
                "damaged, or the dtype too narrow for this model"
            )
        if self._params.normalizes:
            length = np.sqrt(np.square(vector).sum())
            vector = vector / length if length > 0 else vector
        return vector.astype(EMBEDDING_DTYPE).tobytes()
