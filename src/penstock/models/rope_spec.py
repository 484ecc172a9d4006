"""Rotary position embeddings as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding over the first ``dim`` components of a head.

    ``models/rope.py`` turns it into cosine and sine tables per position, so no backend knows a
    scaling kind.
    """

    theta: float
    dim: int
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn, longrope: multiplies cosine and sine
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    rotating: int = 0
    """How many pairs of components rotate, the fastest ones (``proportional`` alone). Frequencies
    are those of all ``dim`` components, and the others stay as they are."""
    interleaved: bool = False
    """Whether neighbouring components are rotated together; else component i and i + dim / 2."""
    short_factors: tuple[float, ...] = ()
    """Divisors of the frequencies for ``longrope`` in contexts of at most
    ``original_max_positions`` tokens, ``[dim / 2]``."""
    long_factors: tuple[float, ...] = ()
    """The same in longer contexts."""
    chosen: Literal["short", "long"] | None = None
    """Which of both lists a plan uses for all positions; None in a model's spec, and for all other
    kinds."""

    def for_context(self, tokens: int) -> RopeSpec:
        """The same for contexts of at most ``tokens``: of LongRoPE's lists, one is chosen.

        ``tokens`` is what was asked for, or the model's limit, never what memory holds: the choice
        decides what the model computes.
        """
        if self.kind != "longrope":
            return self
        return replace(self, chosen="long" if tokens > self.original_max_positions else "short")
