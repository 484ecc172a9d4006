"""When conversations begin: processes of arrival, as offsets in seconds from a run's start."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.errors import ConfigError


class Arrivals(Protocol):
    """A process of arrival. Its times never go back, and there is no last one."""

    def times(self, generator: np.random.Generator) -> Iterator[float]:
        """Seconds from the start."""

    def __str__(self) -> str:
        """As the command line writes it."""


@dataclass(frozen=True)
class AtOnce:
    """Everybody comes at the start."""

    def times(self, generator: np.random.Generator) -> Iterator[float]:
        while True:
            yield 0.0

    def __str__(self) -> str:
        return "at-once"


@dataclass(frozen=True)
class Constant:
    """Equal gaps."""

    rate: float
    """Arrivals in a second."""

    def times(self, generator: np.random.Generator) -> Iterator[float]:
        index = 0
        while True:
            yield index / self.rate
            index += 1

    def __str__(self) -> str:
        return "constant"


@dataclass(frozen=True)
class Gamma:
    """Gaps of a gamma distribution with mean 1 / rate. Its coefficient of variation ``cv`` is 1 for
    a Poisson process; above, arrivals come in bursts, and below they are more regular."""

    rate: float
    cv: float = 1.0

    def times(self, generator: np.random.Generator) -> Iterator[float]:
        shape = 1 / self.cv**2
        at = 0.0
        while True:
            at += float(generator.gamma(shape, 1 / (shape * self.rate)))
            yield at

    def __str__(self) -> str:
        return "poisson" if self.cv == 1 else f"gamma:{self.cv:g}"


@dataclass(frozen=True)
class Ramp:
    """A Poisson process whose rate goes from ``low`` to ``high`` in ``seconds``, evenly, and stays
    there.

    Arrivals of a process of rate 1 are put where the integral of the rate reaches them (inversion;
    Çinlar, Introduction to Stochastic Processes, 1975).
    """

    low: float
    high: float
    seconds: float

    def times(self, generator: np.random.Generator) -> Iterator[float]:
        ramped = (self.low + self.high) / 2 * self.seconds
        total = 0.0
        while True:
            total += float(generator.exponential())
            if total >= ramped:
                yield self.seconds + (total - ramped) / self.high
                continue
            slope = (self.high - self.low) / self.seconds
            if slope == 0:
                yield total / self.low
            else:  # low t + slope t^2 / 2 = total
                yield (math.sqrt(self.low**2 + 2 * slope * total) - self.low) / slope

    def __str__(self) -> str:
        return f"ramp:{self.low:g}..{self.high:g}:{self.seconds:g}"


def parse_arrivals(text: str, rate: float | None) -> Arrivals:
    """``poisson``, ``constant`` and ``gamma:CV`` at a rate; ``at-once`` and ``ramp:LOW..HIGH:S``
    without one. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    try:
        if kind == "ramp":
            rates, _, seconds = rest.partition(":")
            low, _, high = rates.partition("..")
            ramp = Ramp(float(low), float(high), float(seconds))
            if ramp.low >= 0 and 0 < ramp.high < math.inf and 0 < ramp.seconds < math.inf:
                return ramp
        elif kind == "at-once" and not rest:
            return AtOnce()
        elif rate is not None and kind == "constant" and not rest:
            return Constant(rate)
        elif rate is not None and kind == "poisson" and not rest:
            return Gamma(rate)
        elif rate is not None and kind == "gamma" and 1e-3 <= float(rest) <= 1e3:
            return Gamma(rate, float(rest))
    except ValueError:
        pass
    raise ConfigError(
        f"--arrivals {text}: write poisson, constant or gamma:CV with a --rate; at-once; or "
        "ramp:1..20:60 for 1 to 20 a second within 60 seconds"
    )
