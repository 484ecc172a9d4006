"""Finds a server's constants in what its clients and its engine noted of the same requests.

Each constant is seen by itself: the way in of requests that come alone, to an engine that is not in
the middle of a long step; the way back of tokens that a step brings alone; what is between steps.
All are robust means over requests or steps of all rounds, so neither a pause of the machine nor a
round in which something else ran moves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.simulate.front_end import FrontTimes
from penstock.simulate.joined import JoinedLoad, Traced
from penstock.simulate.robust import robust_mean, robust_nonnegative

F64 = NDArray[np.float64]

USUAL: Final = FrontTimes(
    request=2e-3,
    prompt_token=1e-6,
    answer=5e-4,
    chunk=75e-6,
    handled=1.5e-3,
    step=4e-5,
    sequence=1e-6,
)
"""What was found on two cores of Zen 4; it stands for what no load has shown."""
_FEW: Final = 5
"""Fewer observations show nothing."""
_ALONE_S: Final = 0.01
"""A request that is sent so long after the one before finds nothing of it on its way."""
_SHORT_S: Final = 1.5e-3
"""A step during which it hardly matters when a request came: the engine takes it in at the end."""
_STREAMS: Final = 8
"""So many chunks in close succession show what each takes."""
_CLOSE_S: Final = 5e-4
_WINDOW_S: Final = 8e-3
"""Steps that take longer together, before and while a request is handled, do not show what they
lose."""


@dataclass(frozen=True)
class LoadView:
    """A load, and what its steps were expected to take, in seconds."""

    load: JoinedLoad
    expected: F64


def fitted_front(views: Sequence[LoadView]) -> FrontTimes:
    """The constants that these loads show, but for ``slower``."""
    loads = [each.load for each in views]
    step, sequence = _between_steps(loads)
    request, token = _way_in(loads)
    answer = _way_back(loads, step, sequence)
    known = msgspec.structs.replace(
        USUAL,
        request=request,
        prompt_token=token,
        answer=answer,
        chunk=_chunk(loads),
        step=step,
        sequence=sequence,
    )
    known = msgspec.structs.replace(known, handled=_handled(loads, known))
    return msgspec.structs.replace(known, lost_request=_lost(views, known))


def _between_steps(loads: Sequence[JoinedLoad]) -> tuple[float, float]:
    """Seconds between two steps, and for each sequence of the first."""
    gaps, counts = [], []
    for load in loads:
        taken = np.zeros(load.end - load.begin, bool)
        for each in load.requests:  # a request that is taken in is counted apart
            taken[max(int(np.searchsorted(load.ends, each.arrived)) - 1, 0)] = True
        kept = ~np.isnan(load.gaps) & ~taken
        gaps.append(load.gaps[kept])
        counts.append(load.log.sequences[load.begin : load.end][kept])
    gap, count = np.concatenate(gaps), np.concatenate(counts)
    # Steps of few sequences are by far the most: each size counts once.
    lines, means, bound = [], [], 1
    while bound <= (count.max() if len(count) else 0):
        those = (count >= bound) & (count < 2 * bound)
        if those.sum() >= _FEW:
            lines.append((1.0, float(count[those].mean())))
            means.append(robust_mean(gap[those]))
        bound *= 2
    if not lines:
        return USUAL.step, USUAL.sequence
    step, sequence = robust_nonnegative(np.array(lines), np.array(means)).tolist()
    return step, sequence


def _way_in(loads: Sequence[JoinedLoad]) -> tuple[float, float]:
    """Seconds from sending a request until the engine has it, and those for each of its tokens."""
    lines, ways = [], []
    for load in loads:
        for each, before in _with_pauses(load.requests):
            step = _step_before(load, each)
            if before >= _ALONE_S and step <= _SHORT_S:
                # It came during that step, at any time.
                ways.append(each.arrived - each.sent - step / 2)
                lines.append((1.0, each.client.prompt))
    if len(ways) < _FEW:
        return USUAL.request, USUAL.prompt_token
    matrix, seconds = np.array(lines, np.float64), np.array(ways)
    if np.ptp(matrix[:, 1]) == 0:
        return robust_mean(seconds) - USUAL.prompt_token * lines[0][1], USUAL.prompt_token
    request, token = robust_nonnegative(matrix, seconds).tolist()
    return request, token


def _handled(loads: Sequence[JoinedLoad], known: FrontTimes) -> float:
    """The time for which a request keeps the server's event loop: the one with which those sent
    in quick succession would have come when they did."""
    tried = np.linspace(0.0, max(known.request, 1e-3), 41)
    bursts = [burst for load in loads for burst in _bursts(load)]
    if len(bursts) < _FEW:
        return min(USUAL.handled, known.request)

    def miss(handled: float) -> float:
        # Most have none at all, so a median would not tell; none counts more than a long way.
        return sum(
            min(error, known.request) for burst in bursts for error in burst.misses(handled, known)
        )

    return float(min(tried, key=miss))


@dataclass(frozen=True)
class _Burst:
    """Requests of which each is sent while the one before it is on its way."""

    sent: F64
    prompts: F64
    came_after: F64
    """The engine was in a step from this time on, at the end of which it took each in."""
    came_before: F64
    """When it did."""

    def misses(self, handled: float, known: FrontTimes) -> Iterator[float]:
        """Seconds between when each but the first would have come and when it did."""
        free = 0.0
        for place, at in enumerate(self.sent):
            tokenizing = known.prompt_token * self.prompts[place]
            begun = max(float(at), free)
            free = begun + handled + tokenizing
            came = begun + known.request + tokenizing
            early = self.came_after[place] - came
            if place:
                yield float(max(early, came - self.came_before[place], 0.0))


def _bursts(load: JoinedLoad) -> Iterator[_Burst]:
    group: list[Traced] = []
    for each, before in _with_pauses(load.requests):
        if before > USUAL.request and group:
            if len(group) > 1:
                yield _burst(load, group)
            group = []
        group.append(each)
    if len(group) > 1:
        yield _burst(load, group)


def _burst(load: JoinedLoad, group: Sequence[Traced]) -> _Burst:
    came = np.array([each.arrived for each in group])
    return _Burst(
        np.array([each.sent for each in group]),
        np.array([each.client.prompt for each in group], np.float64),
        came - np.array([_step_before(load, each) for each in group]),
        came,
    )


def _way_back(loads: Sequence[JoinedLoad], step: float, sequence: float) -> float:
    """Seconds from the end of a step, and of what follows it, until a first token that it brought
    alone is read."""
    ways = []
    for load in loads:
        brought = np.bincount(
            [each.first_step - load.begin for each in load.requests]
            + [each.last_step - load.begin for each in load.requests],
            minlength=load.end - load.begin,
        )
        for each in load.requests:
            place = each.first_step - load.begin
            if brought[place] == 1:
                after = step + sequence * int(load.log.sequences[each.first_step])
                ways.append(each.first - float(load.log.ends[each.first_step]) - after)
    return max(robust_mean(np.array(ways)), 0.0) if len(ways) >= _FEW else USUAL.answer


def _chunk(loads: Sequence[JoinedLoad]) -> float:
    """Seconds between the chunks of streams that are written one after the other."""
    found: list[float] = []
    for load in loads:
        times = np.sort(
            np.concatenate(
                [each.sent + np.cumsum(each.client.gaps_us) / 1e6 for each in load.requests]
                or [np.zeros(0)]
            )
        )
        cuts = np.flatnonzero(np.diff(times) > _CLOSE_S) + 1
        for part in np.split(times, cuts):
            if len(part) >= _STREAMS:
                found.append(float(part[-1] - part[0]) / (len(part) - 1))
    return robust_mean(np.array(found)) if len(found) >= _FEW else USUAL.chunk


def _lost(views: Sequence[LoadView], known: FrontTimes) -> float:
    """Seconds that steps lose while a request comes that nothing else comes with: more than those
    lost that began right before it was sent, when the machine was as fast.

    Steps count by their begin: of those that run when something comes, too many are long.
    """
    losses: list[float] = []
    for view in views:
        load, expected = view.load, view.expected
        between = known.step + known.sequence * load.log.sequences[load.begin : load.end]
        over = load.seconds - expected + load.gaps - between  # NaN where nothing was left to do
        for each, before in _with_pauses(load.requests):
            if before < max(_ALONE_S, 2 * known.request):
                continue
            times = [each.sent - known.request, each.sent, each.sent + known.request]
            first, middle, last = np.searchsorted(load.begins, times).tolist()
            if first < middle < last and expected[first:last].sum() <= _WINDOW_S:
                losses.append(float(over[middle:last].sum() - over[first:middle].sum()))
    kept = np.array(losses)[~np.isnan(losses)] if losses else np.zeros(0)
    return max(robust_mean(kept), 0.0) if len(kept) >= _FEW else 0.0


def _with_pauses(requests: Sequence[Traced]) -> Iterator[tuple[Traced, float]]:
    """Requests in the order of sending, each with the seconds since the one before."""
    before = -np.inf
    for each in requests:
        yield each, each.sent - before
        before = each.sent


def _step_before(load: JoinedLoad, request: Traced) -> float:
    """Seconds of the step at the end of which the engine took a request in; 0 where it waited for
    nothing."""
    place = int(np.searchsorted(load.ends, request.arrived)) - 1
    if place < 0 or np.isnan(load.gaps[place]):
        return 0.0
    return float(load.ends[place] - load.begins[place])
