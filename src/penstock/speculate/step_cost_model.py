"""Predicts what steps take, with and without drafts, from steps that were measured."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import Final, NamedTuple

from penstock.speculate.control_parameters import DEFAULTS, ControlParameters

MAX_BITS: Final = 32
"""Bits of any number of sequences."""


class CostCurve:
    """Seconds as a function of a number of rows (or of tokens), learnt from noisy measurements.

    Each number of rows has a running mean. Between these the curve is linear, and beyond the last
    it goes on with its mean slope; more rows never cost less there. A mean begins as the median of
    its first measurements, since the first of all finds caches cold, and any may have been held up
    by other processes. Later ones are clipped at a multiple of the mean (winsorized), and weigh
    1 / n for the n-th of them until n is ``memory_samples``.
    """

    def __init__(
        self, parameters: ControlParameters = DEFAULTS, through_zero: bool = False
    ) -> None:
        """Make a curve of which nothing is known but, with ``through_zero``, that 0 rows take 0."""
        self._parameters = parameters
        self._means: dict[int, _Mean] = {}  # by number of rows, rounded
        self._known: list[int] = []  # those that have been measured often enough, ascending
        if through_zero:
            for _ in range(parameters.first_samples):
                self.add(0, 0.0)

    @property
    def most_rows(self) -> int:
        """The largest number of rows that is known; 0 if none is."""
        return self._known[-1] if self._known else 0

    def add(self, rows: int, seconds: float) -> None:
        """Learn that a step of ``rows`` took ``seconds``."""
        parameters, key = self._parameters, self._rounded(rows)
        mean = self._means.get(key)
        if mean is None:
            mean = self._means[key] = _Mean()
        fresh = mean.fresh
        if fresh is None:
            mean.samples = min(mean.samples + 1, parameters.memory_samples)
            clipped = min(seconds, parameters.outlier * mean.seconds)
            mean.seconds += (clipped - mean.seconds) / mean.samples
            return
        fresh.append(seconds)
        if len(fresh) == parameters.first_samples:
            insort(self._known, key)
            mean.seconds = sorted(fresh)[len(fresh) // 2]
            mean.samples, mean.fresh = len(fresh), None

    def renew(self, rows: int) -> None:
        """Let the next measurements of ``rows`` count as if there had been only the first ones.

        After six of them the old mean weighs a third. It is not replaced, since consecutive
        measurements may all have been disturbed by the same other process.
        """
        mean = self._means.get(self._rounded(rows))
        if mean is not None:
            mean.samples = min(mean.samples, self._parameters.first_samples)

    def renew_all(self) -> None:
        """Do so for all numbers of rows."""
        for rows in self._means:
            self.renew(rows)

    def seconds(self, rows: int) -> float:
        """Return what a step of ``rows`` is believed to take; 0 while nothing is known."""
        key, known, means = self._rounded(rows), self._known, self._means
        at = bisect_left(known, key)
        if at < len(known) and (known[at] == key or not at):
            return means[known[at]].seconds
        if not known:
            return 0.0
        if at < len(known):
            first, last = known[at - 1], known[at]
            from_seconds = means[first].seconds
            slope = (means[last].seconds - from_seconds) / (last - first)
            return from_seconds + slope * (max(rows, first) - first)
        first, last = known[0], known[-1]
        seconds = means[last].seconds
        if first == last:
            slope = seconds * self._parameters.row_share / last if last else 0.0
        else:
            slope = max(seconds - means[first].seconds, 0.0) / (last - first)
        return seconds + slope * (rows - last)

    def knows(self, rows: int) -> bool:
        """Return whether ``rows`` lies between numbers that were measured, or near them."""
        known, near = self._known, self._parameters.nearby
        return bool(known) and known[0] <= rows * near and rows <= known[-1] * near

    def _rounded(self, rows: int) -> int:
        """Tell large numbers apart by 9 % only, eight to a doubling."""
        exact = self._parameters.exact_rows
        if rows <= exact:
            return rows
        return round(exact * 2 ** (round(8 * math.log2(rows / exact)) / 8))


class DraftTiming(NamedTuple):
    """The time that a proposer took for the drafts of one step."""

    sequences: int
    """Number of drafts."""
    longest: int
    """Tokens of the longest draft."""
    seconds: float
    steady: bool
    """Whether it only drafted, and read no prompt."""


class StepCostModel:
    """Predicts the time of plain steps, of steps that verify drafts, of drafting and of reading.

    Steps with and without drafts to verify are kept apart, since those leave the target's weights
    out of the processor's caches. So do the first plain steps after them take longer: only plain
    steps that follow ``recovery_steps`` others are measured, for they take what they would without
    speculation. As drafts are judged by this baseline, it is measured again now and then, during
    which there are no drafts (``timing``): soon after the first drafts, when a wrong baseline costs
    most, then more and more seldom.

    It also limits what a single measurement may be charged to drafts: other processes may have had
    the processor meanwhile.
    """

    def __init__(
        self, num_tokens: int, reads: bool, parameters: ControlParameters = DEFAULTS
    ) -> None:
        """Model drafts of at most ``num_tokens`` tokens.

        ``reads`` tells whether the proposer drafts with a model, which must read a sequence first.
        """
        self._parameters = parameters
        self._num_tokens = num_tokens
        self._reads = reads
        self.plain = CostCurve(parameters)
        """Seconds of plain steps, by number of sequences."""
        self.seconds_per_token_read = 0.0
        """Seconds in which a draft model reads a token; 0 while that is not known."""
        self._num_readings = 0
        self._verifying = CostCurve(parameters)  # by rows
        # By the bits of the number of drafts; each by length.
        self._drafting = [CostCurve(parameters, through_zero=True) for _ in range(MAX_BITS)]
        self._plain_steps = 0  # in a row
        self._since_timed = 0  # steps
        self._period = parameters.first_period
        self._to_time = 0  # plain steps

    @property
    def timing(self) -> bool:
        """Whether plain steps are being measured, so that there must be no drafts."""
        return self._to_time > 0

    def time_plain(self) -> None:
        """Measure plain steps of a size of batch that is not known yet."""
        self._to_time = self._parameters.timed_steps
        self._period = self._parameters.first_period

    def doubt_plain(self, decoding: int) -> None:
        """Measure plain steps again, unless they were measured lately: drafts seem to lose."""
        if self._since_timed >= self._parameters.first_period:
            self._time_again(decoding)

    def doubt(self) -> None:
        """Let what is measured next of drafts count more, as much time has passed."""
        self.seconds_per_token_read /= 2
        self._verifying.renew_all()
        for curve in self._drafting:
            curve.renew_all()

    def plain_step(self, decoding: int, steps: int, seconds: float) -> bool:
        """Record the last of ``steps`` plain steps; return whether it was free of after-effects."""
        self._plain_steps += steps
        if self._plain_steps <= self._parameters.recovery_steps:
            self._since_timed += steps
            return False
        self.plain.add(decoding, seconds)
        self._since_timed = 0
        self._to_time = max(self._to_time - 1, 0)
        return True

    def prefill_step(self) -> None:
        """Record a step that read prompts, which cannot be measured and is not waited for: it
        counts as one that was, for there may be prompts in every step to come."""
        self._to_time = max(self._to_time - 1, 0)

    def verified(self, decoding: int, drafted: int, seconds: float | None) -> float:
        """Record a step that verified ``drafted`` tokens; return the seconds to charge for it.

        If ``seconds`` is None, the step tells nothing, and what is usual is charged.
        """
        parameters = self._parameters
        self._plain_steps = 0
        self._since_timed += 1
        if self._since_timed >= self._period:
            self._period = min(self._period * parameters.period_growth, parameters.longest_period)
            self._time_again(decoding)
        usual = self._verify_seconds(decoding, decoding + drafted)
        if seconds is None:
            return usual
        self._verifying.add(decoding + drafted, seconds)
        return min(seconds, parameters.outlier * usual) if usual else seconds

    def drafted(self, timing: DraftTiming, unread: int, plain: float) -> tuple[float, float]:
        """Record what drafting took; return the seconds to charge for drafting and for reading.

        ``unread`` tokens were read for it; ``plain`` is the time of a plain step.
        """
        parameters = self._parameters
        curve = self._drafting[timing.sequences.bit_length()]
        usual = curve.seconds(timing.longest)
        if timing.steady:
            curve.add(timing.longest, timing.seconds)
            return min(timing.seconds, parameters.outlier * (usual or timing.seconds)), 0.0
        drafting = min(usual, timing.seconds)
        reading = timing.seconds - drafting
        if self.to_read(unread):
            self._learn_reading(reading / unread)
            if self._num_readings == 1:  # the weights were never used before
                return drafting, min(reading, parameters.most_first_charge * plain)
        return drafting, min(reading, parameters.most_charge * plain)

    def to_read(self, tokens: int) -> int:
        """Return how many of ``tokens`` unread tokens take time to read: all, or none if few."""
        return tokens if self._reads and tokens > self._parameters.free_tokens else 0

    def relative_costs(self, decoding: int, drafting: int) -> list[float]:
        """Return the time of steps with drafts of 1, 2, ... tokens, in plain steps.

        ``drafting`` of the ``decoding`` sequences have drafts. The plain step must be known. Drafts
        with which a step would have far more rows than any that was measured are left out: in a
        large batch many rows may take long.
        """
        parameters, plain = self._parameters, self.plain.seconds(decoding)
        curve = self._drafting[drafting.bit_length()] if self._reads else None
        measured = max(self._verifying.most_rows, decoding)
        most_rows = max(measured * parameters.probe_growth, measured + 2)
        costs: list[float] = []
        for length in range(1, self._num_tokens + 1):
            rows = decoding + drafting * length
            if length > 1 and rows > most_rows:
                break
            seconds = self._verify_seconds(decoding, rows)
            if curve is not None:
                seconds += curve.seconds(length)
            costs.append(seconds / plain)
        return costs

    def _verify_seconds(self, decoding: int, rows: int) -> float:
        seconds = self._verifying.seconds(rows) or self.plain.seconds(rows)
        return max(seconds, self.plain.seconds(decoding))

    def _learn_reading(self, seconds: float) -> None:
        """Use the minimum of the first readings, and a running mean from there on."""
        self._num_readings += 1
        if self._num_readings <= self._parameters.first_samples:
            self.seconds_per_token_read = min(seconds, self.seconds_per_token_read or seconds)
        else:
            change = seconds - self.seconds_per_token_read
            self.seconds_per_token_read += change / self._parameters.memory_samples

    def _time_again(self, decoding: int) -> None:
        self._to_time = self._parameters.timed_steps
        self._since_timed = 0
        self.plain.renew(decoding)


class _Mean:
    """A running mean, and the measurements from which it will begin (None: it has begun)."""

    __slots__ = ("fresh", "samples", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples = 0
        self.fresh: list[float] | None = []
