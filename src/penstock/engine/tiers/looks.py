"""What is remembered of sequences that were looked for in the stores."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.scheduler.sequence import SequenceState, Slot

MOST_LOSSES: Final = 20
"""How often a sequence is looked for again that has lost what it had."""


class _Look(NamedTuple):
    """How a sequence stood when nothing was to be read for it."""

    tokens: int
    preemptions: int
    found: int
    """Blocks of its prefix that the pool had."""


class Looks:
    """Which sequences were looked for and had nothing to be read, and how often others were looked
    for again. It is forgotten with the sequence."""

    def __init__(self) -> None:
        self._looked: Slot[_Look] = Slot()
        self._losses: Slot[int] = Slot()

    def add(self, sequence: SequenceState, found: int) -> None:
        """Nothing is to be read for a sequence, of whose prefix the pool has so many blocks."""
        look = _Look(len(sequence.token_ids), sequence.num_preemptions, found)
        self._looked.set(sequence, look)

    def covers(self, sequence: SequenceState) -> bool:
        """Whether nothing was to be read for a sequence as it stands: with these tokens, and since
        it was preempted last."""
        look = self._looked.get(sequence)
        stands = len(sequence.token_ids), sequence.num_preemptions
        return look is not None and look[:2] == stands

    def found(self, sequence: SequenceState) -> int:
        """Blocks of its prefix that the pool had when it was looked for last and nothing was to be
        read; 0 if it never was."""
        look = self._looked.get(sequence)
        return 0 if look is None else look.found

    def may_repeat(self, sequence: SequenceState) -> bool:
        """Whether what a sequence has lost may be looked for once more, which this counts: where
        the pool is very small, it might lose it each time."""
        times = self._losses.get(sequence) or 0
        self._losses.set(sequence, times + 1)
        return times < MOST_LOSSES
