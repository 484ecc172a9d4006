"""The state of a sequence in an EAGLE head, with features that were not read yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.speculate.draft_cache import Reading
from penstock.speculate.tree import Node

if TYPE_CHECKING:
    from penstock.scheduler.sequence import SequenceState

_MOST_PENDING = 16 << 20
"""Maximum bytes of unread features of a sequence: 16,384 tokens of the demo model, some hundred of
a large one. Beyond it they are read although nothing is drafted, by a step of a single layer."""


@dataclass(eq=False, slots=True)
class HeadReading(Reading):
    """The progress of an EAGLE head through a sequence.

    The head's row of position p has the target's features of p and the token at p + 1. Its cache
    holds the rows of ``num_computed`` positions from ``base`` on. Tokens before ``base`` were found
    in the target's prefix cache, so there are no features of them.
    """

    base: int = 0
    _pending: list[NDArray[np.float32]] = field(default_factory=list)
    """The features of each position behind the computed ones."""

    @property
    def num_pending(self) -> int:
        """Number of positions whose features are known and were not read yet."""
        return len(self._pending)

    @property
    def end(self) -> int:
        """First position whose features are not known."""
        return self.base + self.num_computed + len(self._pending)

    def add(self, features: Sequence[NDArray[np.float32]]) -> bool:
        """Add the features, ``[columns]`` each, of the positions from ``end`` on.

        Returns False, and adds nothing, if more would be kept than allowed.
        """
        pending = self._pending
        if pending and (len(pending) + len(features)) * pending[0].nbytes > _MOST_PENDING:
            return False
        pending += features
        return True

    def take(self, count: int) -> NDArray[np.float32]:
        """Remove the oldest ``count`` features and return them, ``[count, columns]``.

        The caller puts their rows into the head's cache.
        """
        taken = np.stack(self._pending[:count])
        del self._pending[:count]
        self.num_computed += count
        return taken


@dataclass(eq=False, slots=True)
class Lane:
    """The part of one call that concerns one sequence."""

    sequence: SequenceState
    reading: HeadReading
    index: int = -1
    most: int = 0
    levels: int = 0
    """Maximum depth of its tree; 0 means that it is only read."""
    count: int = 0
    """Number of rows to read."""
    nodes: list[Node] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)
    """Indices of the nodes that may be expanded next."""
    expanded: list[int] = field(default_factory=list)
    """Indices of the nodes that were expanded, in the order of their rows."""
    states: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """The head's state for each expanded node, which its children get as features; -1 is the last
    known token."""

    def row_of(self, node: int) -> int:
        """Return the row of an expanded node, or -1 for the last known token."""
        return -1 if node < 0 else self.expanded.index(node)
