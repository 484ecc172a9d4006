"""How much steps of the same size differ: on any machine some take longer, by what else happens.

Medians of loads hardly know of it, 99th percentiles do. Short steps differ by more than long ones,
in which pauses even out; so there are classes of steps by what they take.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

_FACTORS: Final = 50
_FIRST_S, _RATIO = 1.5e-3, 4.0
"""The longest step of the first class, and how much longer those of each next may be."""
_FEW: Final = 100
"""Fewer steps are no class of their own."""


class Unevenness(msgspec.Struct, frozen=True):
    """What steps take over what is expected of their size."""

    longest: tuple[float, ...]
    """The longest steps of each class but the last, in seconds, ascending."""
    factors: tuple[tuple[float, ...], ...]
    """Factors of each class, ascending, each as probable as the others."""

    @classmethod
    def of(cls, expected: F64, seconds: F64) -> Unevenness | None:
        """That of steps that took ``seconds``; None where there are too few."""
        if len(expected) < _FEW:
            return None
        order = np.argsort(expected)
        expected, ratios = expected[order], (seconds / np.maximum(expected, 1e-9))[order]
        longest: list[float] = []
        factors: list[tuple[float, ...]] = []
        begin, bound = 0, _FIRST_S
        while begin < len(expected):
            end = int(np.searchsorted(expected, bound, side="right"))
            if len(expected) - end < _FEW:
                end = len(expected)
            if end - begin >= _FEW:
                parts = (np.arange(_FACTORS) + 0.5) / _FACTORS
                factors.append(tuple(np.quantile(ratios[begin:end], parts).tolist()))
                longest.append(bound)
                begin = end
            bound *= _RATIO
        return cls(tuple(longest[:-1]), tuple(factors))


class Drawn:
    """Steps that differ so, by chance that a seed decides."""

    def __init__(self, uneven: Unevenness, seed: tuple[int, ...]) -> None:
        self._uneven = uneven
        self._random = np.random.default_rng([*seed, 0x57E9])

    def each(self, expected: list[float]) -> list[float]:
        """Seconds of steps, one after the other, all of one class: that of the first."""
        if not expected:
            return []
        factors = self._uneven.factors[bisect_left(self._uneven.longest, expected[0])]
        places = self._random.integers(len(factors), size=len(expected)).tolist()
        return [one * factors[place] for one, place in zip(expected, places, strict=True)]

    def one(self, expected: float) -> float:
        """Seconds of one step."""
        return self.each([expected])[0]
