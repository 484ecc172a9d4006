"""Measures what a server takes besides its steps, by loading one as ``bench serve`` does.

Of what a request takes, and of what others take from steps, nothing can be seen by itself. So those
constants are the ones with which simulations of the same loads come nearest to what was measured:
least squares of the logarithms of times, by the method of Levenberg and Marquardt.

Most loads are of requests at random times, as users send them: where others take the place of those
that end, many are sent in the very moment in which the server and its clients have most to do, and
one after the other finds all caches filled with what it needs. Neither is what a trace meets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.bench.load.document import LoadedRun
from penstock.bench.progress import Progress
from penstock.bench.stats import Summary
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.server_loads import Seen, ServerLoad, alike, mixed, seen
from penstock.simulate.setup import Setup

NO_FRONT: Final = FrontTimes(request=0.0, prompt_token=0.0, answer=0.0, chunk=0.0)
_CHUNK_S: Final = 75e-6
"""What writing, sending and reading a chunk takes where other work empties the caches
(benchmarks/server)."""
_OUTBOUND: Final = 0.2
"""The part of a lone request's time outside steps that is behind its first step, as it was seen on
two cores of Zen 4."""

_CLOSED: Final = ((1, 64, 96), (24, 400, 16))
"""Open requests, prompt and output tokens of loads without pauses: one that decodes, and prompts
that fill steps. The last such load takes all places, for mixed lengths."""
_PARTS: Final = (0.15, 0.3, 0.5, 0.7, 0.85)
"""Loads of requests that come at random times, as parts of what the server can do."""
_RANDOM_S, _CHECK_S = 6.0, 12.0
_REQUESTS, _LONGEST_S = 20, 20.0
"""Random loads are of so many requests at least, unless that takes longer; one of which not a fifth
comes by then says nothing, and is left out."""
_CHECK_PART: Final = 0.6
_NEAR: Final = 0.2
"""Largest relative error of the check's medians; three calibrations had 7, 15 and 38 %."""

_LEAST: Final = {
    "request": 1e-5,
    "prompt_token": 1e-7,
    "handled": 2e-5,
    "step": 2e-6,
    "slower": 1e-3,
    "sequence": 2e-7,
    "lost_request": 2e-5,
}
"""Constants that are fitted, and values below which they are as good as none."""
_START: Final = {
    "request": 2.5e-3,
    "prompt_token": 1e-6,
    "handled": 1.5e-3,
    "step": 4e-5,
    "slower": 5e-2,
    "sequence": 1e-6,
    "lost_request": 1e-4,
}
"""What they are on two cores of Zen 4, where server and engine noted the times of all that they
did."""
_PRIOR: Final = 0.05
"""How much it counts that a constant is near these: next to nothing where loads tell what it is.
Where they do not tell two of them apart, noise would make one large and the other nothing."""
_ROUNDS: Final = 7
_TICK_S: Final = 1e-5
"""Times below this are as good as none."""
_WEIGHTS: Final = {"seconds": 2.0, "ttft": 1.0, "itl": 0.5, "e2el": 1.0}
"""How much an error of each figure counts: what a load takes as a whole is measured best."""


@dataclass(frozen=True)
class MeasuredServer:
    """What was found out about a server."""

    front: FrontTimes
    template: int
    checked: dict[str, float]
    """Simulated / measured - 1 of a load that nothing was fitted to; empty where the model is too
    slow for one."""

    @property
    def worst(self) -> float:
        """The largest error of a median; 0 where nothing was checked."""
        return max((abs(e) for name, e in self.checked.items() if name.endswith("p50")), default=0)


def measure_server(url: str, setup: Setup, progress: Progress) -> MeasuredServer:
    """Load the server at ``url``, which runs what ``setup`` says, for about a minute; for two where
    the check at the end of the first finds that something else was in the way.

    ``setup`` has the clock of its steps; its front end is found here. Raises PenstockError where
    the server does not answer.
    """
    setup = replace(setup, front=NO_FRONT)
    first = _measured_once(url, setup, progress)
    if first.worst <= _NEAR:
        return first
    return min(first, _measured_once(url, setup, progress), key=lambda found: found.worst)


def _measured_once(url: str, setup: Setup, progress: Progress) -> MeasuredServer:
    seqs, longest = setup.limits.max_num_seqs, setup.limits.lengths.max_model_len
    loads = [
        ServerLoad.closed(setup, count, alike(min(prompt, longest // 4), min(output, longest // 4)))
        for count, prompt, output in _CLOSED
        if count <= seqs
    ]
    loads.append(ServerLoad.closed(setup, seqs, mixed(longest)))
    progress.begin("server", len(loads) + len(_PARTS) + 1, "loads")
    loaded = Loaded(url, progress)
    runs = [loaded.run(each) for each in loads]
    setup = replace(setup, template=_template(runs))
    assert loads[-1].requests is not None
    most = loads[-1].requests / seen(runs[-1]).seconds
    for part in _PARTS:
        load = _random(longest, part * most, _RANDOM_S)
        if load is not None:
            loads.append(load)
            runs.append(loaded.run(load))
    setup = replace(setup, front=fit(setup, loads, list(map(seen, runs))))
    check = _random(longest, _CHECK_PART * most, _CHECK_S)
    checked = {}
    if check is not None:
        checked = _errors(check.simulated(setup), seen(loaded.run(check)))
    return MeasuredServer(setup.front, setup.template, checked)


def _random(longest: int, rate: float, seconds: float) -> ServerLoad | None:
    """A load of ``rate`` requests a second, for so long at least; None where too few would come."""
    seconds = min(max(seconds, _REQUESTS / rate), max(seconds, _LONGEST_S))
    if rate * seconds < _REQUESTS / 5:
        return None
    return ServerLoad(mixed(longest), rate=rate, duration_s=seconds)


@dataclass(frozen=True)
class Loaded:
    """A server that is loaded, one load after the other."""

    url: str
    progress: Progress

    def run(self, load: ServerLoad) -> LoadedRun:
        run = load.measured(self.url)
        self.progress.advance(1)
        return run


def fit(setup: Setup, loads: Sequence[ServerLoad], found: Sequence[Seen]) -> FrontTimes:
    """The constants of a front end by what was ``found`` of each of ``loads``."""
    start = np.array([log(_START[name] + least) for name, least in _LEAST.items()])

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        tried = replace(setup, front=_with(setup.front, values))
        errors = [
            error
            for load, measured in zip(loads, found, strict=True)
            for error in _weighted_errors(load, load.simulated(tried), measured)
        ]
        return np.concatenate([np.array(errors), _PRIOR * (values - start)])

    return _with(setup.front, levenberg_marquardt(residuals, start, _ROUNDS))


def levenberg_marquardt(
    residuals: _Residuals, start: NDArray[np.float64], rounds: int, step: float = 0.3
) -> NDArray[np.float64]:
    """Values near ``start`` with a smaller sum of squares of ``residuals``, which may have small
    jumps: derivatives are differences over ``step``, and no value moves by more than 1.5 a round
    (Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", 1963)."""
    values, damping = start, 0.03
    left = residuals(values)
    for _ in range(rounds):
        columns = []
        for place in range(len(values)):
            moved = values.copy()
            moved[place] += step
            columns.append((residuals(moved) - left) / step)
        slopes = np.stack(columns, axis=1)
        for _ in range(3):
            normal = slopes.T @ slopes + damping * np.eye(len(values))
            change = np.clip(np.linalg.solve(normal, -slopes.T @ left), -1.5, 1.5)
            then = residuals(values + change)
            if then @ then < left @ left:
                values, left, damping = values + change, then, damping / 3
                break
            damping *= 8
        else:
            break
    return values


class _Residuals(Protocol):
    def __call__(self, values: NDArray[np.float64], /) -> NDArray[np.float64]: ...


def _with(front: FrontTimes, values: NDArray[np.float64]) -> FrontTimes:
    """The constants of which ``values`` are the logarithms; those that are next to none are 0."""
    constants = {
        name: max(exp(value) - least, 0.0)
        for (name, least), value in zip(_LEAST.items(), values.tolist(), strict=True)
    }
    way = constants.pop("request")
    return msgspec.structs.replace(
        front,
        request=way * (1 - _OUTBOUND),
        answer=way * _OUTBOUND,
        chunk=_CHUNK_S,
        **constants,
    )


def _weighted_errors(load: ServerLoad, simulated: Seen, measured: Seen) -> Iterator[float]:
    """Logarithms of what was simulated over what was measured."""
    if load.concurrency is not None:
        yield _WEIGHTS["seconds"] * _log_ratio(simulated.seconds, measured.seconds)
    for name, ours, theirs in _pairs(simulated, measured):
        for part in ("p50", "p90", "mean"):
            yield _WEIGHTS[name] / 3 * _log_ratio(getattr(ours, part), getattr(theirs, part))


def _log_ratio(simulated: float, measured: float) -> float:
    return log(max(simulated, _TICK_S) / max(measured, _TICK_S))


def _errors(simulated: Seen, measured: Seen) -> dict[str, float]:
    return {
        f"{name}.{part}": exp(_log_ratio(getattr(ours, part), getattr(theirs, part))) - 1
        for name, ours, theirs in _pairs(simulated, measured)
        for part in ("p50", "p99")
    }


def _pairs(simulated: Seen, measured: Seen) -> Iterator[tuple[str, Summary, Summary]]:
    yield "ttft", simulated.ttft, measured.ttft
    if simulated.itl is not None and measured.itl is not None:
        yield "itl", simulated.itl, measured.itl
    yield "e2el", simulated.e2el, measured.e2el


def _template(runs: Sequence[LoadedRun]) -> int:
    """Tokens of a prompt that nobody asked for."""
    more = [
        each.input_tokens - each.input_tokens_asked
        for run in runs
        for each in run.requests
        if each.input_tokens is not None and each.input_tokens_asked is not None
    ]
    return max(round(median(more)), 0) if more else 0
