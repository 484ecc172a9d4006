"""The constants of a model and its server, found in a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.simulate.engine_log import LoggedSteps
from penstock.simulate.fitted_front import LoadView, fitted_front
from penstock.simulate.fitted_steps import FittedSteps, LoadedSteps, fitted_steps
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.joined import joined
from penstock.simulate.recording import RecordedLoad, Recording
from penstock.simulate.step_times import ObservedStep, StepTimes
from penstock.simulate.uneven import Unevenness

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Fitted:
    """What was found."""

    steps: StepTimes
    front: FrontTimes
    template: int
    """Tokens that the chat template adds to every prompt."""
    drifts: dict[tuple[str, int], float]
    """The times of each load and round's steps over those of the load's median round."""
    uneven: Unevenness | None = None
    """How much steps of the same size differ under load."""


def fitted(recording: Recording) -> Fitted:
    """Fit all constants to a recording."""
    loads = joined(recording, LoggedSteps(recording.engine))
    observed = [
        LoadedSteps(each.recorded.name, each.recorded.round, list(each.observed(recording.windows)))
        for each in loads
    ]
    steps = fitted_steps(recording.alone, observed, recording.windows)
    views = [
        LoadView(load, _expected(steps, each.steps))
        for load, each in zip(loads, observed, strict=True)
    ]
    front = msgspec.structs.replace(fitted_front(views), slower=steps.slower)
    return Fitted(
        steps.times,
        front,
        _template(recording.loads),
        steps.drifts,
        _unevenness(views, steps.drifts),
    )


def _unevenness(
    views: Sequence[LoadView], drifts: Mapping[tuple[str, int], float]
) -> Unevenness | None:
    """That of steps of loads at random times, if there are such: users send requests so."""
    random = [each for each in views if each.load.recorded.load.rate is not None] or views
    seconds = []
    for each in random:
        recorded = each.load.recorded
        seconds.append(each.load.seconds / drifts.get((recorded.name, recorded.round), 1.0))
    return Unevenness.of(
        np.concatenate([each.expected for each in random]), np.concatenate(seconds)
    )


def _expected(steps: FittedSteps, observed: Sequence[ObservedStep]) -> F64:
    """Seconds of steps under load, by what was found."""
    if not observed:
        return np.zeros(0)
    found: F64 = steps.times.predicted(observed) * (1 + steps.slower)
    return found


def _template(loads: Sequence[RecordedLoad]) -> int:
    more = [each.template for each in loads if each.template is not None]
    return max(round(median(more)), 0) if more else 0
