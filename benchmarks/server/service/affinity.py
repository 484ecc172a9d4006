"""Routing by prefix affinity, as Ray Serve's ``PrefixCacheAffinityRouter`` does it by default.

Its tree has the texts that each replica was sent, for ever: what caches have given up is not told.
Here a text is a sequence of blocks. Each is drawn at random, so texts part where blocks do, and a
tree of characters would find the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

MATCH_RATE = 0.1
"""Share of a text that a replica must have been sent to be preferred for it."""
IMBALANCE = float("inf")
"""Loads count as uneven where the most open requests of a replica exceed the fewest by more than
this: by default never."""


@dataclass
class _Node:
    replicas: set[int] = field(default_factory=set)
    """Those that were sent all up to here."""
    children: dict[int, _Node] = field(default_factory=dict)


class PrefixAffinity:
    """Chooses replicas; each request is *begun* and *ended*.

    Where loads are even it takes those that were sent the longest part of a text, or, if that is
    less than ``match_rate`` of it, those that were sent least in all; else two at random. Of these
    it takes the one with the fewest open requests.
    """

    def __init__(
        self,
        replicas: int,
        seed: int = 0,
        match_rate: float = MATCH_RATE,
        imbalance: float = IMBALANCE,
    ) -> None:
        self._root = _Node()
        self._open = [0] * replicas
        self._blocks = [0] * replicas  # of the tree
        self._match_rate = match_rate
        self._imbalance = imbalance
        self._random = random.Random(seed)

    def begin(self, text: Sequence[int]) -> int:
        """The replica that gets a text."""
        among = self._among(text)
        fewest = min(self._open[replica] for replica in among)
        chosen = self._random.choice([each for each in among if self._open[each] == fewest])
        self._insert(text, chosen)
        self._open[chosen] += 1
        return chosen

    def end(self, replica: int) -> None:
        """Note that a request of a replica has ended."""
        self._open[replica] -= 1

    def _among(self, text: Sequence[int]) -> list[int]:
        everyone = range(len(self._open))
        if max(self._open) - min(self._open) > self._imbalance:
            return self._random.sample(everyone, min(2, len(everyone)))
        node, matched = self._root, 0
        for block in text:
            child = node.children.get(block)
            if child is None:
                break
            node, matched = child, matched + 1
        if matched and matched >= self._match_rate * len(text):
            return sorted(node.replicas)
        least = min(self._blocks)
        return [replica for replica in everyone if self._blocks[replica] == least]

    def _insert(self, text: Sequence[int], replica: int) -> None:
        node = self._root
        for block in text:
            node = node.children.setdefault(block, _Node())
            if replica not in node.replicas:
                node.replicas.add(replica)
                self._blocks[replica] += 1
