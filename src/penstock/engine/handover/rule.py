"""Which prompts are worth a handover.

A handover of n tokens costs ``overhead_s + n * token_bytes / bandwidth`` before the request goes on
here, and saves the ``n / rate`` seconds for which this engine would compute them, in steps that all
its sequences wait for. So it pays from

    n = overhead_s / (1 / rate - token_bytes / bandwidth)

tokens on that are not cached, and never where bytes take longer than tokens. And it pays only while
the prefill engine is not much in arrears: what it was asked for, and this prompt, must be done
within ``max_wait_s``. ``rate`` and ``bandwidth`` are measured as prompts are computed and blocks
come; the other two are constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from penstock.cache.geometry import BLOCK_SIZE

OVERHEAD_S: Final = 0.04
"""What a handover costs besides its bytes, in seconds: a message there, the end of the step that
runs there, and a step here for the tokens behind the last whole block (docs/disaggregation.md has
the measurements)."""
LEAST_TOKENS: Final = 4 * BLOCK_SIZE
"""Fewest tokens that are handed over, whatever was measured: those of a short step."""
FIRST_BANDWIDTH: Final = 200e6
"""Bytes a second to assume before any block has come; a network of 2 Gbit/s does more."""
FIRST_RATE: Final = 1000.0
"""Tokens a second to assume before any prompt was computed here."""
_WEIGHT: Final = 0.2  # of a new measurement


class Measured:
    """A rate, as a mean in which newer measurements weigh more."""

    def __init__(self, first: float) -> None:
        self.value = first
        """``first`` until something was measured."""
        self.known = False

    def begin(self, value: float | None) -> None:
        """Begin with what was measured before, if anything was."""
        if value is not None:
            self.value, self.known = value, True

    @property
    def measured(self) -> float | None:
        """The rate; None while nothing was measured."""
        return self.value if self.known else None

    def add(self, amount: float, seconds: float) -> None:
        if amount <= 0 or seconds <= 0:
            return
        new = amount / seconds
        self.value = self.value + _WEIGHT * (new - self.value) if self.known else new
        self.known = True


@dataclass(frozen=True)
class Costs:
    """What a handover costs, and what it saves."""

    token_bytes: float
    """Bytes of a token's blocks, in all groups of layers without a window."""
    bandwidth: float
    """Bytes of blocks that come in a second."""
    rate: float
    """Tokens of prompts that this engine computes in a second."""
    overhead_s: float = OVERHEAD_S

    @property
    def least_tokens(self) -> int | None:
        """Fewest tokens that are worth a handover; None where none are."""
        saved = 1 / self.rate - self.token_bytes / self.bandwidth
        if saved <= 0:
            return None
        return max(LEAST_TOKENS, math.ceil(self.overhead_s / saved))


@dataclass(frozen=True)
class Load:
    """How busy a prefill engine is."""

    queued_tokens: int
    """Tokens that it was asked for and has not computed."""
    rate: float
    """Tokens of prompts that it computes in a second; 0 while that is not known."""

    def wait_s(self, tokens: int, guess: float = 0.0) -> float:
        """Seconds until it would have computed so many more; ``guess`` is its rate while that is
        not known, 0: as if nothing took time."""
        rate = self.rate or guess
        return (self.queued_tokens + tokens) / rate if rate else 0.0
