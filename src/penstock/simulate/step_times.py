"""What steps of a measured model take: constants, and how they are fitted.

A step's time is fitted to steps of the model itself::

    rows(tokens) + sequence * S + sample * L + chunk * C + read * R + pair * P + behind * B

with S sequences, L sampled tokens, C parts of prompts, R cached tokens that attention reads and P
tokens that rows see (of layers with windows, within these, weighted by the layers' bytes). ``rows``
has straight lines between numbers of tokens that were measured: products take longer by steps, not
in proportion. B is by how many tokens the step before was larger, up to 256: it has taken the
caches that a small one would have found filled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import Chunk, Window
from penstock.plan.costs import PlanCosts
from penstock.plan.plan import Plan
from penstock.simulate.clock import StepShape, straight
from penstock.simulate.robust import robust_nonnegative

F64 = NDArray[np.float64]

_BEHIND: Final = 256
"""Tokens beyond which a step leaves no more of what caches held."""


class WindowShare(msgspec.Struct, frozen=True):
    """Layers whose attention sees the same of a sequence."""

    window: int | None
    """None: all of it."""
    chunk: bool
    """Whether ``window`` is the size of chunks."""
    share: float
    """Their part of the bytes that are cached of a token."""

    @property
    def seen(self) -> Window | None:
        return Chunk(self.window) if self.chunk and self.window is not None else self.window


class ObservedStep(NamedTuple):
    """A step that was measured."""

    shape: StepShape
    before: int
    """Tokens of the step before it; 0 if there was none right before."""
    seconds: float


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of a model's steps, in seconds."""

    tokens: tuple[int, ...]
    """Ascending numbers of tokens of a step."""
    rows: tuple[float, ...]
    """What a step of so many takes, whatever they are."""
    sequence: float
    sample: float
    chunk: float
    read: float
    pair: float
    behind: float
    windows: tuple[WindowShare, ...]
    error: float
    """The median of the relative errors of the steps that it was fitted to."""

    @classmethod
    def fit(
        cls,
        observed: Sequence[ObservedStep],
        windows: tuple[WindowShare, ...],
        counts: F64 | None = None,
    ) -> StepTimes:
        """Fit the constants; ``reads`` and ``pairs`` of the shapes are for each of ``windows``.
        ``counts``: how much each step counts; None: all as much."""
        knots = _knots([each.shape.tokens for each in observed])
        matrix = step_columns(observed, knots, windows)
        seconds = np.array([each.seconds for each in observed], np.float64)
        found = robust_nonnegative(matrix, seconds, counts)
        *climbs, sequence, sample, chunk, read, pair, behind = found.tolist()
        return cls(
            tokens=knots,
            rows=tuple(accumulate(climbs)),
            sequence=sequence,
            sample=sample,
            chunk=chunk,
            read=read,
            pair=pair,
            behind=behind,
            windows=windows,
            error=float(np.median(np.abs(matrix @ found / seconds - 1))),
        )

    def predicted(self, observed: Sequence[ObservedStep]) -> F64:
        """Seconds of steps of these sizes, none larger than those that were measured."""
        columns = step_columns(observed, self.tokens, self.windows)
        climbs = np.diff(self.rows, prepend=0.0)
        others = (self.sequence, self.sample, self.chunk, self.read, self.pair, self.behind)
        found: F64 = columns @ np.array([*climbs, *others])
        return found

    def scaled(self, factor: float) -> StepTimes:
        """The same of a machine that takes ``factor`` times as long."""
        return msgspec.structs.replace(
            self,
            rows=tuple(each * factor for each in self.rows),
            sequence=self.sequence * factor,
            sample=self.sample * factor,
            chunk=self.chunk * factor,
            read=self.read * factor,
            pair=self.pair * factor,
            behind=self.behind * factor,
        )

    def of_rows(self, tokens: int) -> float:
        """Seconds of so many tokens; beyond those measured, on by the slope of their upper half: a
        single stretch may be short, and its slope mostly noise."""
        if len(self.tokens) == 1:
            return self.rows[0] * tokens / self.tokens[0]
        last = self.tokens[-1]
        if tokens > last:
            half = max(last // 2, self.tokens[0])
            slope = (self.rows[-1] - self.of_rows(half)) / (last - half)
            return self.rows[-1] + max(slope, 0.0) * (tokens - last)
        at = min(max(bisect_right(self.tokens, tokens), 1), len(self.tokens) - 1)
        (low, high), (first, second) = self.tokens[at - 1 : at + 1], self.rows[at - 1 : at + 1]
        return first + (second - first) * max(tokens - low, 0) / (high - low)


@dataclass(frozen=True)
class MeasuredClock:
    """The :class:`~penstock.simulate.clock.StepClock` of a model that was measured."""

    times: StepTimes

    @cached_property
    def windows(self) -> tuple[Window | None, ...]:
        return tuple(each.seen for each in self.times.windows)

    def seconds(self, shape: StepShape) -> float:
        times = self.times
        return (
            times.of_rows(shape.tokens)
            + times.sequence * shape.sequences
            + times.sample * shape.logits
            + times.chunk * shape.chunks
            + times.read * _weighted(shape.reads, times.windows)
            + times.pair * _weighted(shape.pairs, times.windows)
        )

    def behind(self, before: int, tokens: int) -> float:
        return self.times.behind * _excess(before, tokens)

    def decoding(self, sequences: int, reads: Sequence[Sequence[float]]) -> list[float]:
        times = self.times
        fixed = times.of_rows(sequences) + (times.sequence + times.sample) * sequences
        token = times.read + times.pair
        return straight(fixed, [token * each.share for each in times.windows], reads)


def window_shares(plan: Plan) -> tuple[WindowShare, ...]:
    """What the attention ops of a plan see, by the bytes that they read of a token."""
    found: dict[Window | None, int] = {}
    for each, count in PlanCosts.of(plan).counts:
        if each.work == "attention":
            found[each.window] = found.get(each.window, 0) + count * max(each.token_bytes, 1)
    total = sum(found.values())
    return tuple(
        WindowShare(
            window.size if isinstance(window, Chunk) else window,
            isinstance(window, Chunk),
            part / total,
        )
        for window, part in found.items()
    )


def step_columns(
    observed: Sequence[ObservedStep], knots: Sequence[int], windows: Sequence[WindowShare]
) -> F64:
    """What each constant counts with in each step: a line for each of ``observed``."""
    return np.array(
        [
            (
                *_climbs(each.shape.tokens, knots),
                *(each.shape.sequences, each.shape.logits, each.shape.chunks),
                *(_weighted(each.shape.reads, windows), _weighted(each.shape.pairs, windows)),
                _excess(each.before, each.shape.tokens),
            )
            for each in observed
        ],
        np.float64,
    )


def _excess(before: int, tokens: int) -> int:
    return min(max(before - tokens, 0), _BEHIND)


def _knots(tokens: Sequence[int]) -> tuple[int, ...]:
    """Numbers of tokens that were measured, the first of each stretch of a fifth, and the last."""
    found: list[int] = []
    for each in sorted(set(tokens)):
        if not found or each > found[-1] * 6 / 5:
            found.append(each)
    last = max(tokens)
    if found[-1] != last:
        if len(found) > 1 and last <= found[-1] * 6 / 5:
            found.pop()
        found.append(last)
    return tuple(found)


def _climbs(tokens: int, knots: Sequence[int]) -> list[float]:
    """The part of each climb, from a knot to the next, that is below ``tokens``. None of them is
    negative: more tokens never take less time."""
    at = bisect_right(knots, tokens)
    parts = [1.0] * at + [0.0] * (len(knots) - at)
    if at < len(knots):
        parts[at] = (tokens - knots[at - 1]) / (knots[at] - knots[at - 1])
    return parts


def _weighted(each: Sequence[float], windows: Sequence[WindowShare]) -> float:
    return sum(value * window.share for value, window in zip(each, windows, strict=True))
