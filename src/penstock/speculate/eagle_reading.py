"""How far an EAGLE head has read a sequence, and what it was told and has not read yet."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.cache.kv_cache import BlockTable

_MOST_PENDING = 16 << 20
"""Bytes of features that are kept of a sequence that nothing is drafted for. Beyond, reading begins
anew behind them: the head then sees the text from there on."""


@dataclass(eq=False, slots=True)
class Reading:
    """The head's row of position p has the target's features of p and the token at p + 1.

    Rows of positions from ``base`` on lie in the head's cache, ``num_computed`` of them. What comes
    before ``base`` was found in the target's prefix cache, so that there are no features of it.
    """

    base: int
    table: BlockTable = field(default_factory=BlockTable)
    num_computed: int = 0
    _pending: list[NDArray[np.float32]] = field(default_factory=list)
    """Features of the next positions, ``[n, F]`` each."""
    num_pending: int = 0

    @property
    def end(self) -> int:
        """The first position of which nothing is known."""
        return self.base + self.num_computed + self.num_pending

    def add(self, features: NDArray[np.float32]) -> bool:
        """Those of the positions from ``end`` on. False where too much would be kept."""
        held = sum(each.nbytes for each in self._pending)
        if held + features.nbytes > max(_MOST_PENDING, features.nbytes):
            return False
        self._pending.append(features)
        self.num_pending += len(features)
        return True

    def take(self, count: int) -> NDArray[np.float32]:
        """The first ``count`` of those that were added; they are in the cache from now on."""
        features = np.concatenate(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending = [features[count:]] if count < len(features) else []
        self.num_pending -= count
        self.num_computed += count
        return features[:count]
