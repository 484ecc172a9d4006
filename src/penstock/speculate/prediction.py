"""Drafts of a text that the client predicts: where the output is in it, and what follows there."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from penstock.interface.automaton import Automaton
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Slot, Status
from penstock.speculate.draft import Wanted

if TYPE_CHECKING:
    from penstock.scheduler.sequence import SequenceState

PREDICTED: Final = -1
"""The kind of such drafts, which is none of a proposer's: no controller knows them."""

_FIRST = 4
"""Tokens of the first draft after a place was found; each that is right doubles it."""
_NEAR = 16
"""How far behind the place where output and prediction part one token is enough to find it again:
an edit replaces, adds or leaves out a few."""
_FAR = 3
"""The length of a match that is enough elsewhere."""
_PATIENT, _SELDOM = 16, 4
"""An output that was not found after so many tokens is looked for at every fourth. In between,
steps may overlap."""
_MOST_MATCHED = 8
"""The longest match that is ever asked for: each place that was wrong asks for one token more."""


class PredictedText:
    """What a client predicts, which the sequences of one request share."""

    def __init__(self, tokens: array[int], automaton: Callable[[array[int]], Automaton]) -> None:
        """``automaton`` makes the index of a text, once it is needed."""
        self.tokens = tokens
        self._automaton = automaton

    @cached_property
    def index(self) -> Automaton:
        return self._automaton(self.tokens)


class PredictedPlace:
    """Where an output is in its prediction, as far as its tokens tell.

    *In step*, the next token is expected to be the one at ``at``. A token that is another ends
    that; the place is then looked for by the latest tokens of the output: behind the place where
    the two parted, and in the whole prediction where that finds nothing. What a wrong prediction
    costs is bounded: a draft in vain has ``_FIRST`` tokens, and each makes the next less likely.
    """

    def __init__(self, text: PredictedText, prompt: int, most: int) -> None:
        """``text`` is predicted to follow ``prompt`` tokens. A draft has at most ``most``."""
        self._whole, self._text = text, text.tokens
        self._read = self._first = prompt
        self._most = most
        self._at = 0
        self._in_step = True
        self._parted = 0  # where a place was last certain and then lost
        self._length = min(_FIRST, most)
        self._drafted = False  # since the tokens that were read
        self._misses = 0  # drafts of which nothing was right, since one of which something was
        self._looks = 0  # for the place, in vain

    def may_follow(self, known: int) -> bool:
        """Return whether to ask, of a sequence of ``known`` tokens, what follows."""
        return self._in_step or self._looks < _PATIENT or known % _SELDOM == 0

    def following(self, tokens: array[int], left: int) -> array[int]:
        """Return at most ``left`` tokens that may follow ``tokens``, prompt and output; none where
        the place is not known. All of ``tokens`` are known."""
        self._read_on(tokens)
        if not self._in_step:
            self._find(tokens)
            self._looks = 0 if self._in_step else self._looks + 1
        if not self._in_step:
            return array("i")
        draft = self._text[self._at : self._at + min(self._length, left)]
        self._drafted = bool(draft)
        return draft

    def _read_on(self, tokens: array[int]) -> None:
        """Take in the output since the last call."""
        new = tokens[self._read :]
        drafted, self._drafted = self._drafted, False
        self._read = len(tokens)
        if not self._in_step or not new:
            return
        text, at = self._text, self._at
        right = 0
        while right < len(new) and at < len(text) and text[at] == new[right]:
            at += 1
            right += 1
        self._at = at
        if right == len(new):
            if drafted:
                self._misses = 0
                self._length = min(2 * self._length, self._most)
            if at == len(text):  # what comes now may still be found elsewhere in it
                self._part(at)
            return
        if right == 0 and drafted:  # the place was wrong: it is looked for where it was before
            self._misses += 1
            at = self._parted
        elif right:
            self._misses = 0
        self._part(at)

    def _part(self, at: int) -> None:
        """The output goes another way than the prediction does from ``at`` on."""
        self._in_step, self._parted = False, at
        self._length = min(_FIRST, self._most)

    def _find(self, tokens: array[int]) -> None:
        """Look for the place by the end of the output."""
        text, last = self._text, tokens[-1]
        longest, found = min(self._misses, _MOST_MATCHED - 1), 0
        for place in range(self._parted, min(self._parted + _NEAR, len(text))):
            if text[place] == last:
                length = self._matched(tokens, place)
                if length > longest:
                    longest, found = length, place + 1
        if not found and len(tokens) - self._first >= _FAR:
            end_of_output = tokens[-min(_MOST_MATCHED, len(tokens) - self._first) :]
            length, end = self._whole.index.find(end_of_output)
            if length >= min(_FAR + self._misses, _MOST_MATCHED):
                found = end
        if 0 < found < len(text):
            self._at, self._in_step = found, True

    def _matched(self, tokens: array[int], place: int) -> int:
        """How many of the latest output tokens, at most those that count, end at ``place``."""
        length = 1
        most = min(_MOST_MATCHED, place + 1, len(tokens) - self._first)
        while length < most and self._text[place - length] == tokens[-1 - length]:
            length += 1
        return length


class Predictions:
    """The predictions of live sequences, and drafts of them. Not thread-safe."""

    def __init__(self) -> None:
        self._live: list[SequenceState] = []
        self._places: Slot[PredictedPlace] = Slot()

    def expect(self, sequence: SequenceState, text: PredictedText, most: int) -> None:
        """As :meth:`Speculation.expect`."""
        self._places.set(sequence, PredictedPlace(text, sequence.num_prompt_tokens, most))
        self._live.append(sequence)

    def may_draft(self) -> bool:
        """Return whether there may be a draft once the step in flight is taken in, which left the
        sequences as they are but for its tokens."""
        return any(self._place(sequence) is not None for sequence in self._running())

    def drafts(self) -> dict[SequenceState, Draft]:
        """Return drafts for the next step; no step is in flight."""
        drafts: dict[SequenceState, Draft] = {}
        for sequence in self._running():
            place = self._place(sequence)
            if place is None:
                continue
            left = sequence.max_total_tokens - len(sequence.token_ids) - 1
            tokens = place.following(sequence.token_ids, left)
            if tokens:
                drafts[sequence] = Draft(tokens, PREDICTED)
        return drafts

    def _running(self) -> list[SequenceState]:
        if not self._live:
            return self._live
        self._live = [each for each in self._live if each.status is not Status.FINISHED]
        return [each for each in self._live if each.status is Status.RUNNING]

    def _place(self, sequence: SequenceState) -> PredictedPlace | None:
        """The place of one that decodes, has room for more than a token and is not held up by its
        grammar; None where nothing is to be drafted."""
        known = len(sequence.token_ids)
        if (
            known - sequence.num_computed > 1
            or not sequence.num_prompt_tokens < known < sequence.max_total_tokens - 1
            or sequence.awaits_mask
            or (sequence.matcher is not None and sequence.matcher.slow)
        ):
            return None
        place = self._places.get(sequence)
        return place if place is not None and place.may_follow(known) else None


class NoProposer:
    """The proposer of an engine that drafts of predictions alone."""

    kinds = 1
    cheap = True
    steady = True

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        return [None] * len(wanted)

    def reset(self) -> None:
        pass

    def check_integrity(self) -> None:
        pass

    def close(self) -> None:
        pass
