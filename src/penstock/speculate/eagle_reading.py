"""How far an EAGLE head has read a sequence, and what it was told and has not read yet."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cache.kv_cache import BlockTable

_MOST_PENDING = 16 << 20
"""Bytes of features that are kept of a sequence that nothing is drafted for: 16,384 tokens of the
demo model, some hundred of a large one. Then they are read, in a step of a single layer."""
_FIRST_ROWS = 8


class Reading:
    """The head's row of position p has the target's features of p and the token at p + 1.

    Rows of positions from ``base`` on lie in the head's cache, ``num_computed`` of them. What comes
    before ``base`` was found in the target's prefix cache, so that there are no features of it.
    """

    __slots__ = ("_pending", "base", "num_computed", "num_pending", "table")

    def __init__(self, base: int, columns: int) -> None:
        """``columns`` of features."""
        self.base = base
        self.table = BlockTable()
        self.num_computed = 0
        self.num_pending = 0
        """Positions behind these of which the features are known."""
        self._pending = np.empty((_FIRST_ROWS, columns), np.float32)

    @property
    def end(self) -> int:
        """The first position of which nothing is known."""
        return self.base + self.num_computed + self.num_pending

    def add(self, source: NDArray[Any], rows: Seq[int]) -> bool:
        """Those ``rows`` of ``source`` are the features of the positions from ``end`` on.

        False, and nothing is added, where too much would be kept.
        """
        count = self.num_pending + len(rows)
        if count > len(self._pending):
            size = max(count, 2 * len(self._pending))
            if self.num_pending and size * self._pending[0].nbytes > _MOST_PENDING:
                return False
            grown = np.empty((size, self._pending.shape[1]), np.float32)
            grown[: self.num_pending] = self._pending[: self.num_pending]
            self._pending = grown
        if len(rows) == 1:  # a third of what a list takes
            self._pending[self.num_pending] = source[rows[0]]
        else:
            self._pending[self.num_pending : count] = source[list(rows)]
        self.num_pending = count
        return True

    def take(self, count: int) -> NDArray[np.float32]:
        """The first ``count`` of those that were added; they are in the cache from now on."""
        taken = self._pending[:count]
        self._pending = self._pending[count:]
        if len(self._pending) < _FIRST_ROWS:
            rest = np.empty((_FIRST_ROWS, taken.shape[1]), np.float32)
            rest[: len(self._pending)] = self._pending
            self._pending = rest
        self.num_pending -= count
        self.num_computed += count
        return taken
