"""Beam search: several continuations of one prompt, the likeliest of which go on together.

The rules are those of transformers' ``generate(num_beams=width, do_sample=False)`` (its version 5),
for one prompt. In every step each running beam offers its likeliest next tokens. Of all that are
offered, the best go on; those of the first ``width`` by rank that end the text are finished, with
the mean log-probability of their tokens as their score, if ``length_penalty`` is 1. The search is
over when none that runs can do better than the worst of ``width`` finished ones, at the greatest
length, or, with ``early_stopping``, when there are as many finished ones as beams.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from penstock.errors import RequestError, shown
from penstock.interface.logprobs import TokenLogprobs
from penstock.sampling.ranges import Range

MAX_WIDTH = 32
"""Rows of a step that one request may ask for, each with its likeliest tokens."""
_PENALTIES = Range(-100.0, 100.0)


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for a beam search in place of draws."""

    width: Annotated[int, Meta(description="How many beams go on together.")]
    length_penalty: Annotated[
        float,
        Meta(
            description="The sum of a finished beam's log-probabilities is divided by its length "
            "to this power: above 0 longer texts gain, below 0 shorter ones."
        ),
    ] = 1.0
    early_stopping: Annotated[
        bool,
        Meta(description="Ends the search with as many finished beams as its width."),
    ] = False

    def validate(self) -> None:
        """Raise RequestError naming the first value that is out of range."""
        Range(1, MAX_WIDTH).check("beam_width", self.width)
        _PENALTIES.check("length_penalty", self.length_penalty)
        if not isinstance(self.early_stopping, bool):
            raise RequestError(
                f"early_stopping must be true or false, not {shown(self.early_stopping)}",
                "early_stopping",
            )

    def candidates(self, num_ending: int) -> int:
        """How many of a row's likeliest tokens are looked at, where so many tokens end a text: if
        all of these are among them, ``width`` others are left."""
        return max(2, 1 + num_ending) * self.width


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """Tokens of an output, as a chain from the last one, which others may share."""

    last: TokenLogprobs
    before: Beam | None
    length: int
    total: float
    """Sum of the tokens' log-probabilities."""

    @property
    def tokens(self) -> list[TokenLogprobs]:
        """All tokens, the first one first."""
        return list(self._backwards())[::-1]

    def _backwards(self) -> Iterator[TokenLogprobs]:
        beam: Beam | None = self
        while beam is not None:
            yield beam.last
            beam = beam.before


class Pick(NamedTuple):
    """A running beam's next token."""

    parent: int
    """Index, among the running beams before, of the one that it continues."""
    token_id: int


class Beams:
    """The beams of one prompt: those that run, the best one first, and those that are finished."""

    def __init__(
        self, search: BeamSearch, ending: Collection[int], min_tokens: int, max_tokens: int
    ) -> None:
        """``ending``: tokens that end a text, but not one of ``min_tokens`` tokens or less."""
        self._search = search
        self._ending = ending
        self._min_tokens = min_tokens
        self._max_tokens = max_tokens
        self._running: list[Beam] | None = None  # None: the prompt alone
        self._finished: list[tuple[float, Beam]] = []
        self.over = False

    @property
    def num_running(self) -> int:
        """Number of rows that the next :meth:`advance` takes: one for the prompt, then one for each
        running beam."""
        return 1 if self._running is None else len(self._running)

    @property
    def finished(self) -> list[Beam]:
        """The finished beams, the best one first."""
        return [beam for _, beam in self._finished]

    def advance(self, rows: Sequence[Sequence[tuple[int, float]]]) -> list[Pick]:
        """Choose among the likeliest tokens behind each running beam, ``rows[i]`` being those of
        beam ``i`` with their log-probabilities, the likeliest one first.

        Returns what goes on, the best one first; nothing once the search is ``over``.
        """
        width = self._search.width
        length = 1 if self._running is None else self._running[0].length + 1
        at_end = length >= self._max_tokens
        picks: list[Pick] = []
        going: list[Beam] = []
        ended: list[Beam] = []
        for place, (parent, beam) in enumerate(self._candidates(rows, length)):
            token = beam.last.token_id
            if token in self._ending or at_end:
                if place < width:
                    ended.append(beam)
            elif len(going) < width:
                picks.append(Pick(parent, token))
                going.append(beam)
        self._finish(ended)
        self._running = going
        self.over = at_end or not going or self._is_decided(going[0])
        return [] if self.over else picks

    def _candidates(
        self, rows: Sequence[Sequence[tuple[int, float]]], length: int
    ) -> list[tuple[int, Beam]]:
        """What all rows offer, the best first, each with the index of the beam it continues."""
        parents: Sequence[Beam | None] = [None] if self._running is None else self._running
        offered: list[tuple[int, Beam]] = []
        for i, (parent, row) in enumerate(zip(parents, rows, strict=True)):
            before, top = 0.0 if parent is None else parent.total, list(row)
            for rank, (token, logprob) in enumerate(row, 1):
                if token in self._ending and length <= self._min_tokens:
                    continue
                last = TokenLogprobs(token, logprob, rank, top)
                offered.append((i, Beam(last, parent, length, before + logprob)))
        offered.sort(key=lambda each: -each[1].total)
        return offered[: self._search.candidates(len(self._ending))]

    def _finish(self, ended: Sequence[Beam]) -> None:
        scored = [(self._score(beam.total, beam.length), beam) for beam in ended]
        self._finished = sorted([*self._finished, *scored], key=lambda each: -each[0])
        del self._finished[self._search.width :]

    def _is_decided(self, best: Beam) -> bool:
        """Whether no running beam, of which this is the best, can be among the best finished."""
        if len(self._finished) < self._search.width:
            return False
        if self._search.early_stopping:
            return True
        worst, _ = self._finished[-1]
        return self._score(best.total, best.length) <= worst

    def _score(self, total: float, length: int) -> float:
        score: float = total / length**self._search.length_penalty
        return score
