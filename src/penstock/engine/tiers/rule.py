"""Which prefixes are worth reading.

Reading takes ``OVERHEAD_S + sum(bytes / bandwidth)`` seconds over the stores below the pool, each
with a bandwidth of its own, ``bytes`` being those of the prefix and those that are read before
them; computing the ``tokens`` takes ``tokens / rate``. The lesser one is done. All rates are
measured, as blocks come and prompts are computed. While one of them is not known, what is there is
read: so it becomes known. Where there is a disk, the next engine begins with what this one has
measured (``kvstore/rates.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.handover.rule import Measured

OVERHEAD_S: Final = 0.005
"""What a read costs besides its bytes: the end of a step, and waking two threads."""
LEAST_TOKENS: Final = 64
"""Tokens of a step below which its time says nothing of how fast prompts are computed."""
PATIENCE: Final = 1.5
"""A sequence whose turn it is waits for its blocks as long as computing them would take, so many
times; then they are computed."""
LEAST_PATIENCE_S: Final = 0.25
MOST_DECLINED: Final = 20
"""The last of so many prefixes that were not worth reading is read: a disk that was slow for a
while, before a restart perhaps, is measured again."""
CALM: Final = 0.125
"""So large a part of that time, others' steps come first; then the longer the less."""
CALM_UNKNOWN_S: Final = 2.5
"""The same while nothing was computed, beside a patience of 10 s."""


class ReadingCosts:
    """What was measured of all ways to a prefix."""

    def __init__(self, stores: int = 1) -> None:
        """``stores``: how many there are below the pool."""
        self.bandwidths = tuple(Measured(200e6) for _ in range(stores))
        """Bytes of blocks that come from each store in a second."""
        self.rate = Measured(1000.0)
        """Tokens of prompts that are computed in a second."""

    def reading_s(self, sizes: Sequence[int]) -> float:
        """``sizes``: bytes of each store."""
        each = zip(sizes, self.bandwidths, strict=True)
        return OVERHEAD_S + sum(size / bandwidth.value for size, bandwidth in each)

    def computing_s(self, tokens: int) -> float:
        return tokens / self.rate.value

    def worth(self, tokens: int, sizes: Sequence[int], waiting: Sequence[int]) -> bool:
        """Whether to read so many bytes of each store, which save computing so many tokens, while
        others are ``waiting`` to be read there."""
        sums = [size and size + before for size, before in zip(sizes, waiting, strict=True)]
        each = zip(sums, self.bandwidths, strict=True)
        if not (self.rate.known and all(bandwidth.known for size, bandwidth in each if size)):
            return True
        return self.reading_s(sums) < self.computing_s(tokens)

    def patience_s(self, tokens: int) -> float:
        """Seconds that a sequence whose turn it is waits for its blocks."""
        if not self.rate.known:
            return 10.0
        return max(PATIENCE * self.computing_s(tokens), LEAST_PATIENCE_S)

    def calm_s(self, tokens: int) -> float:
        """Seconds of these in which its blocks come so slowly that others' steps take hardly
        longer."""
        return max(CALM * self.computing_s(tokens), 1e-6) if self.rate.known else CALM_UNKNOWN_S


class Choice:
    """Whether prefixes are read or computed, one after the other."""

    def __init__(self, costs: ReadingCosts) -> None:
        self._costs = costs
        self._declined = 0
        """Those that were not worth reading since one was read last."""

    def reads(self, tokens: int, sizes: Sequence[int], waiting: Sequence[int]) -> bool:
        """Decide on the next prefix, as :meth:`ReadingCosts.worth`, or to measure again."""
        if not self._costs.worth(tokens, sizes, waiting):
            self._declined += 1
            if self._declined < MOST_DECLINED:
                return False
        self._declined = 0
        return True
