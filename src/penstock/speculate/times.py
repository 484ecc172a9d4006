"""What steps take, with drafts and without, and what drafts take, as measured while they run."""

from __future__ import annotations

from typing import NamedTuple

from penstock.speculate.costs import StepCosts

FEW = 8
"""Tokens that a model may read besides drafting, and take no longer for it."""
_FIRST_READINGS, _MOST_FIRST = 3, 3.0
"""Of these the least is believed, and of the very first so many steps are booked at most: a model
that was never used takes several times as long."""
_OUTLIER = 2.0
_MOST_READING = 64.0
"""What others do with the processor is not booked: steps take so many times what is believed at
most, and reading so many steps."""
_NEWEST = 0.1
"""Weight of the newest measurement of what reading takes."""


class Made(NamedTuple):
    """What it took to draft."""

    sequences: int
    longest: int
    """Tokens of the longest draft."""
    seconds: float
    steady: bool
    """Nothing was read for it but what always is."""


class Times:
    """In seconds. Steps are told apart by whether they verify drafts: these leave caches behind in
    which the others, too, take longer.

    ``num_tokens``: of the longest draft. ``reads``: whether who drafts reads a sequence first.
    """

    def __init__(self, num_tokens: int, reads: bool) -> None:
        self._num_tokens = num_tokens
        self._reads = reads
        self.plain = StepCosts()
        """Of steps without drafts."""
        self.reading = 0.0
        """Of a token; 0 while it is not known."""
        self._readings = 0  # that were measured
        self._verifying = StepCosts()
        self._drafting: dict[int, StepCosts] = {}  # by the width of sequences; of K

    def verified(self, decoding: int, drafted: int, seconds: float | None) -> float:
        """A step of ``decoding`` sequences and ``drafted`` tokens; returns what is to be booked.

        Without ``seconds`` nothing is known of it, and what is usual is returned.
        """
        usual = self._of_verifying(decoding, decoding + drafted)
        if seconds is None:
            return usual
        self._verifying.add(decoding + drafted, seconds)
        return min(seconds, _OUTLIER * usual) if usual else seconds

    def made(self, made: Made, unread: int, plain: float) -> tuple[float, float]:
        """What drafting took by itself, and reading ``unread`` tokens, as they are to be booked."""
        width = made.sequences.bit_length()
        costs = self._drafting.get(width)
        if costs is None:
            costs = self._drafting[width] = StepCosts(free=True)
        if made.steady:
            usual = costs.seconds(made.longest) or made.seconds
            costs.add(made.longest, made.seconds)
            return min(made.seconds, _OUTLIER * usual), 0.0
        drafting = min(costs.seconds(made.longest), made.seconds)
        reading = made.seconds - drafting
        if unread > FEW:
            each = reading / unread
            self._readings += 1
            if self._readings <= _FIRST_READINGS:
                self.reading = min(each, self.reading or each)
            else:
                self.reading += (each - self.reading) * _NEWEST
            if self._readings == 1:
                return drafting, min(reading, _MOST_FIRST * plain)
        return drafting, min(reading, _MOST_READING * plain)

    def doubt(self) -> None:
        """Much time has passed: what is measured next counts more, and reading may be cheaper."""
        self.reading *= 0.5
        self._verifying.renew_all()
        for costs in self._drafting.values():
            costs.renew_all()

    def prices(self, decoding: int, drafting: int) -> list[float]:
        """Of steps with drafts of 1, 2, ... tokens for ``drafting`` of ``decoding`` sequences; one
        without drafts, which must be known, costs 1."""
        plain = self.plain.seconds(decoding)
        costs = self._drafting.get(drafting.bit_length()) if self._reads else None
        most = max(self._verifying.most_rows, decoding)
        reach = max(most * 1.5, most + 2)
        prices: list[float] = []
        for count in range(1, self._num_tokens + 1):
            rows = decoding + drafting * count
            if count > 1 and rows > reach:
                break  # felt out little by little: in a large batch many rows may take long
            seconds = self._of_verifying(decoding, rows)
            if costs is not None:
                seconds += costs.seconds(count)
            prices.append(seconds / plain)
        for i in reversed(range(len(prices) - 1)):
            # What was measured long ago may be too much: fewer tokens cost no more than more do.
            prices[i] = min(prices[i], prices[i + 1])
        return prices

    def _of_verifying(self, decoding: int, rows: int) -> float:
        """Never less than a step without drafts."""
        seconds = self._verifying.seconds(rows) or self.plain.seconds(rows)
        return max(seconds, self.plain.seconds(decoding))
