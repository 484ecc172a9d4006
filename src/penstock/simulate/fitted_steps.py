"""Fits what steps take to steps that a server's engine ran under load, and to those that it ran
alone.

Under load each step was timed as it is to be predicted: beside the server and its clients, which
share caches, memory and cores with it. But no load has steps of all sizes. Those that ran alone do,
and count as much longer as steps under load are on the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.simulate.robust import robust_mean
from penstock.simulate.step_times import ObservedStep, StepTimes, WindowShare

F64 = NDArray[np.float64]


_ALONE: Final = 0.1
"""How much steps that ran alone count together, beside those of a load: they are to say what loads
do not."""


@dataclass(frozen=True)
class LoadedSteps:
    """The steps of a load in one round."""

    load: str
    round: int
    steps: Sequence[ObservedStep]


@dataclass(frozen=True)
class FittedSteps:
    """What was found of steps."""

    times: StepTimes
    """What they take alone."""
    slower: float
    """The part by which they take longer under load."""
    drifts: dict[tuple[str, int], float]
    """The times of each load and round's steps over those of the load's median round."""


def fitted_steps(
    alone: Sequence[ObservedStep],
    loaded: Sequence[LoadedSteps],
    windows: tuple[WindowShare, ...],
) -> FittedSteps:
    """Fit both to one set of constants, of which those of steps ``alone`` are the smaller by
    ``slower``.

    Each load counts as much, however many steps it has: of the shortest ones there are very many.
    Where the machine was slower in one round of a load than in the others, the steps of that round
    count as if it had not been: such times come and go, and their share in a few minutes is chance.
    """
    bare = StepTimes.fit(alone, windows)
    loaded = [each for each in loaded if each.steps]
    if not loaded:
        return FittedSteps(bare, 0.0, {})
    paces = [robust_mean(_ratios(bare, each.steps)) for each in loaded]
    slower = max(median(paces) - 1, 0.0)
    both = [each._replace(seconds=each.seconds * (1 + slower)) for each in alone]
    counts = [_ALONE / max(len(alone), 1)] * len(alone)
    drifts = {}
    for each, pace in zip(loaded, paces, strict=True):
        drift = pace / median(p for e, p in zip(loaded, paces, strict=True) if e.load == each.load)
        drifts[each.load, each.round] = drift
        both += [step._replace(seconds=step.seconds / drift) for step in each.steps]
        alike = sum(len(one.steps) for one in loaded if one.load == each.load)
        counts += [1 / alike] * len(each.steps)
    times = StepTimes.fit(both, windows, np.array(counts))
    return FittedSteps(times.scaled(1 / (1 + slower)), slower, drifts)


def _ratios(times: StepTimes, steps: Sequence[ObservedStep]) -> F64:
    """What steps took over what was expected."""
    seconds = np.array([each.seconds for each in steps], np.float64)
    found: F64 = seconds / np.maximum(times.predicted(steps), 1e-9)
    return found
