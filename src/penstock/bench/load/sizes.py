"""How long prompts, answers and pauses are: distributions, as the command line writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.errors import ConfigError

_UNIFORM: Final = re.compile(r"(\d{1,8})(?:\.\.(\d{1,8}))?")
_NORMAL: Final = re.compile(r"(\d{1,8})~(\d{1,8})")
"""Nothing that is drawn is as much as a hundred million."""


@dataclass(frozen=True)
class Sizes:
    """Whole numbers, drawn independently of each other.

    Uniform between ``low`` and ``high``, both included; or, with ``deviation``, normal around
    ``low``, rounded, and drawn again where it falls below ``least``.
    """

    low: int
    high: int
    deviation: int | None = None
    least: int = 1

    @classmethod
    def parse(cls, text: str, least: int = 1) -> Sizes:
        """``512`` is always that, ``100..900`` uniform, ``512~64`` normal with that deviation.

        Raises ConfigError.
        """
        if found := _UNIFORM.fullmatch(text):
            low, high = int(found[1]), int(found[2] or found[1])
            if least <= low <= high:
                return cls(low, high, least=least)
        elif (found := _NORMAL.fullmatch(text)) and int(found[1]) >= least:
            return cls(int(found[1]), int(found[1]), int(found[2]), least)
        raise ConfigError(
            f"{text!r} is no length; write 512, 100..900 for any from 100 to 900, or 512~64 for a "
            f"mean and its standard deviation, of at least {least}"
        )

    def draw(self, generator: np.random.Generator) -> int:
        """One of them."""
        if self.deviation is None:
            return int(generator.integers(self.low, self.high + 1))
        while True:  # the mean is not below `least`, so half of all draws are taken
            drawn = round(float(generator.normal(self.low, self.deviation)))
            if drawn >= self.least:
                return drawn

    def __str__(self) -> str:
        if self.deviation is not None:
            return f"{self.low}~{self.deviation}"
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"
