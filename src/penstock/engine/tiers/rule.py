"""Which prefixes are worth reading.

Reading ``bytes`` takes ``OVERHEAD_S + (waiting + bytes) / bandwidth`` seconds, ``waiting`` being
those that are read before; computing their ``tokens`` takes ``tokens / rate``. The lesser one is
done. Both rates are measured, as blocks are read and prompts computed. While one of them is not
known, what is on disk is read: so it becomes known. The next engine begins with what this one has
measured (``kvstore/rates.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
CALM: Final = 0.125
"""So large a part of that time, others' steps come first; then the longer the less."""
CALM_UNKNOWN_S: Final = 2.5
"""The same while nothing was computed, beside a patience of 10 s."""


@dataclass
class ReadingCosts:
    """What was measured of both ways to a prefix."""

    bandwidth: Measured = field(default_factory=lambda: Measured(200e6))
    """Bytes of blocks that come in a second."""
    rate: Measured = field(default_factory=lambda: Measured(1000.0))
    """Tokens of prompts that are computed in a second."""

    def reading_s(self, size: int, waiting: int = 0) -> float:
        return OVERHEAD_S + (size + waiting) / self.bandwidth.value

    def computing_s(self, tokens: int) -> float:
        return tokens / self.rate.value

    def worth(self, tokens: int, size: int, waiting: int) -> bool:
        """Whether to read so many bytes, which save computing so many tokens."""
        if not (self.bandwidth.known and self.rate.known):
            return True
        return self.reading_s(size, waiting) < self.computing_s(tokens)

    def patience_s(self, tokens: int) -> float:
        """Seconds that a sequence whose turn it is waits for its blocks."""
        if not self.rate.known:
            return 10.0
        return max(PATIENCE * self.computing_s(tokens), LEAST_PATIENCE_S)

    def calm_s(self, tokens: int) -> float:
        """Seconds of these in which its blocks come so slowly that others' steps take hardly
        longer."""
        return max(CALM * self.computing_s(tokens), 1e-6) if self.rate.known else CALM_UNKNOWN_S
