"""Bits of a model's matrices under a budget: of all ways that are small enough, the one that loses
least."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

STEPS: Final = 1 << 17
"""Sizes are counted in parts of the budget, at most so many, where no unit divides them all. They
are rounded up, so that the budget holds."""

_UNITS: Final = {"K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}


@dataclass(frozen=True)
class Budget:
    """What quantized weights may take."""

    text: str
    """As it was asked for."""
    bits: float | None = None
    """Bits of a weight of the matrices that can be quantized, with scales and all that is stored
    beside them."""
    num_bytes: int | None = None
    """Bytes of all weights of the checkpoint, those too that stay as they are."""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``3.5`` is bits of a weight; ``380MB`` and ``1.5GiB`` are of the whole checkpoint.

        Raises ValueError.
        """
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMG]I?)B)?", text.strip(), re.IGNORECASE)
        if found is None or float(found[1]) == 0:
            raise ValueError(
                f"not a budget: {text!r} (write 3.5 for bits of a weight, or 380MB or 2GiB for the "
                "whole checkpoint)"
            )
        if found[2] is None:
            return cls(text, bits=float(found[1]))
        return cls(text, num_bytes=int(float(found[1]) * _UNITS[found[2].upper()]))

    def of_matrices(self, weights: int, others: int) -> int:
        """The bytes that matrices may take which have so many ``weights``, beside ``others`` bytes
        of what is not quantized; below 0 where these alone are too many."""
        if self.bits is not None:
            return math.floor(weights * self.bits / 8)
        assert self.num_bytes is not None
        return self.num_bytes - others

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Option:
    """One way of storing something."""

    num_bytes: int
    loss: float
    """What is lost with it; losses of several things add up."""


def least_loss(things: Sequence[Sequence[Option]], budget: int) -> list[int] | None:
    """The option of each thing with which all losses together are least, while all bytes together
    are at most ``budget``; None where they cannot be.

    A multiple-choice knapsack, solved by dynamic programming over bytes: exactly where sizes have a
    common divisor that is large enough, else with sizes rounded up to ``budget / STEPS``. Of equal
    losses the fewest bytes win, and then the earlier option.
    """
    least = [min(each.num_bytes for each in options) for options in things]
    spare = budget - sum(least)
    if spare < 0:
        return None
    best_of_each = [
        min(range(len(own)), key=lambda number: (own[number].loss, own[number].num_bytes))
        for own in things
    ]
    if sum(own[n].num_bytes for own, n in zip(things, best_of_each, strict=True)) <= budget:
        return best_of_each  # which rounding sizes up might exclude
    extras = [[o.num_bytes - low for o in own] for own, low in zip(things, least, strict=True)]
    wanted = sum(map(max, extras))
    spare = min(spare, wanted)
    unit = math.gcd(*(extra for own in extras for extra in own)) or 1
    unit = max(unit, -(-spare // STEPS))
    steps = spare // unit
    best: NDArray[np.float64] = np.zeros(steps + 1)
    taken = np.zeros((len(things), steps + 1), np.uint8)
    for row, options, own in zip(taken, things, extras, strict=True):
        found = np.full(steps + 1, np.inf)
        for number, (option, extra) in enumerate(zip(options, own, strict=True)):
            cost = -(-extra // unit)
            if cost > steps:
                continue
            total = best[: steps + 1 - cost] + option.loss
            better = total < found[cost:]
            found[cost:][better] = total[better]
            row[cost:][better] = number
        best = found
    at = int(np.argmin(best))  # the first of equals, which has the fewest bytes
    chosen: list[int] = []
    for row, own in zip(taken[::-1], extras[::-1], strict=True):
        number = int(row[at])
        chosen.append(number)
        at -= -(-own[number] // unit)
    return chosen[::-1]
