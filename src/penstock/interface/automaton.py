"""Finding what a growing text repeats, in Python or in native code."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

WALK = 32
"""Maximum suffix links followed to record the latest occurrence. Ordinary text has four or five;
only periodic text has more, and there it matters little which occurrence is used."""


class Automaton(Protocol):
    """What :class:`~penstock.speculate.suffix.SuffixAutomaton` does in Python, and native code 20
    times as fast."""

    def __init__(self, tokens: array[int] | None = None, walk: int = WALK) -> None: ...

    def __len__(self) -> int:
        """Return the number of tokens of the text."""
        ...

    @property
    def match_length(self) -> int:
        """Length in tokens of the longest suffix that occurred before."""
        ...

    @property
    def match_end(self) -> int:
        """End of the earlier occurrence, as a number of tokens; 0 without a match."""
        ...

    def extend(self, tokens: array[int]) -> None:
        """Append tokens to the text."""
        ...

    def following(self, count: int) -> array[int]:
        """Return ``count`` tokens that followed the match; none without a match."""
        ...

    def find(self, tokens: array[int]) -> tuple[int, int]:
        """Return the length and end of the longest suffix of ``tokens`` in the text."""
        ...

    def slice(self, first: int, end: int) -> array[int]:
        """Return the text's tokens from ``first`` up to ``end``, or to its own end."""
        ...

    @staticmethod
    def follow(
        asked: Sequence[tuple[Automaton, array[int], int]], min_match: int, most_read: int
    ) -> list[tuple[int, array[int]] | None]:
        """Do for many texts at once what :meth:`SuffixAutomaton.follow` says."""
        ...
