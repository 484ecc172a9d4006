"""How far an EAGLE head has read a sequence, and what it was told and has not read yet."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.cache.kv_cache import BlockTable
from penstock.speculate.tree import Node

if TYPE_CHECKING:
    from penstock.scheduler.sequence import Sequence

_MOST_PENDING = 16 << 20
"""Bytes of features that are kept of a sequence that nothing is drafted for: 16,384 tokens of the
demo model, some hundred of a large one. Then they are read, in a step of a single layer."""


class Reading:
    """The head's row of position p has the target's features of p and the token at p + 1.

    Rows of positions from ``base`` on lie in the head's cache, ``num_computed`` of them. What comes
    before ``base`` was found in the target's prefix cache, so that there are no features of it.
    """

    __slots__ = ("_pending", "base", "num_computed", "table")

    def __init__(self, base: int) -> None:
        self.base = base
        self.table = BlockTable()
        self.num_computed = 0
        self._pending: list[NDArray[np.float32]] = []  # of each position behind these

    @property
    def num_pending(self) -> int:
        """Positions behind those that were computed, of which the features are known."""
        return len(self._pending)

    @property
    def end(self) -> int:
        """The first position of which nothing is known."""
        return self.base + self.num_computed + len(self._pending)

    def add(self, features: Seq[NDArray[np.float32]]) -> bool:
        """Those of the positions from ``end`` on, ``[columns]`` each.

        False, and nothing is added, where too much would be kept.
        """
        pending = self._pending
        if pending and (len(pending) + len(features)) * pending[0].nbytes > _MOST_PENDING:
            return False
        pending += features
        return True

    def take(self, count: int) -> NDArray[np.float32]:
        """``[count, columns]``: the first that were added; they are in the cache from now on."""
        taken = np.stack(self._pending[:count])
        del self._pending[:count]
        self.num_computed += count
        return taken


@dataclass(eq=False, slots=True)
class Lane:
    """What one call reads and drafts of a sequence."""

    sequence: Sequence
    reading: Reading
    index: int = -1
    most: int = 0
    levels: int = 0
    """How deep its tree may be; 0: it only reads."""
    count: int = 0
    """Rows to read."""
    nodes: list[Node] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)
    """Nodes that may be computed next."""
    expanded: list[int] = field(default_factory=list)
    """Nodes that were computed, in the order of their rows."""
    states: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """What computing a node gave: features of what follows it. -1: of the last known token."""

    def row_of(self, node: int) -> int:
        return -1 if node < 0 else self.expanded.index(node)
