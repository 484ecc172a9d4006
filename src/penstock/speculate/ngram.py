"""Drafts by prompt lookup: text that repeats itself is expected to go on as it did before."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.cache.prefix import root_key
from penstock.interface.automaton import Automaton
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Slot
from penstock.speculate.draft import Wanted
from penstock.speculate.suffix import SuffixAutomaton
from penstock.speculative_config import Ngram

if TYPE_CHECKING:
    from penstock.scheduler.sequence import SequenceState

_MOST_READ = 2048
"""Maximum tokens of a sequence indexed in one step: 0.4 ms, or 4 ms without native code. A longer
prompt is indexed over several steps, so that other sequences do not wait for it."""

_MOST_SUFFIX = 16
"""Length of the longest suffix that is looked up in the shared text."""
_BETWEEN = -1  # in the shared text, between two requests


class NgramProposer:
    """Drafts what followed the longest suffix of a sequence where it occurred before.

    It looks in the sequence itself, and in finished requests if ``shared_tokens`` is set.
    """

    kinds = 4  # by the length of the match: the longer, the likelier that it goes on
    cheap = True
    steady = True

    def __init__(self, config: Ngram, automaton: type[Automaton] = SuffixAutomaton) -> None:
        self._config = config
        self._automaton = automaton
        self._texts: Slot[Automaton] = Slot()
        self._shared = _Shared(config.shared_tokens, automaton) if config.shared_tokens else None

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        if self._shared is not None:
            self._shared.learn(sequence for sequence, _ in wanted)
        asked = [(self._text(sequence), sequence.token_ids, most) for sequence, most in wanted]
        found = self._automaton.follow(asked, self._config.min_match, _MOST_READ)
        drafts = [Draft(each[1], _kind(each[0])) if each else None for each in found]
        if self._shared is not None:
            for i, (text, tokens, most) in enumerate(asked):
                if drafts[i] is None and len(text) == len(tokens):
                    drafts[i] = self._from_shared(self._shared, wanted[i].sequence, most)
        return drafts

    def reset(self) -> None:
        if self._shared is not None:
            self._shared.reset()

    def check_integrity(self) -> None:
        if self._shared is not None:
            self._shared.check_integrity()

    def close(self) -> None:
        self._shared = None

    def _text(self, sequence: SequenceState) -> Automaton:
        text = self._texts.get(sequence)
        if text is None:
            text = self._automaton()
            self._texts.set(sequence, text)
        return text

    def _from_shared(self, shared: _Shared, sequence: SequenceState, most: int) -> Draft | None:
        length, tokens = shared.following(sequence, most)
        if length < self._config.min_match or not tokens:
            return None
        return Draft(tokens, _kind(length))


class _Shared:
    """An index of at most ``capacity`` tokens of the most recently finished requests.

    Requests with a cache salt neither add to it nor use it: acceptance, and so the speed of an
    output, would tell one tenant about another's text.
    """

    def __init__(self, capacity: int, automaton: type[Automaton]) -> None:
        self._capacity = capacity
        self._automaton = automaton
        self._text = automaton()
        self._live: set[SequenceState] = set()
        self._unsalted = root_key("")

    def learn(self, wanted: Iterable[SequenceState]) -> None:
        """Remember the sequences that decode, and add those remembered that have ended."""
        ended = [s for s in self._live if s.finish_reason is not None]
        for sequence in ended:
            self._live.discard(sequence)
            self._take_in(sequence.token_ids)
        self._live.update(s for s in wanted if s.table.root == self._unsalted)

    def following(self, sequence: SequenceState, most: int) -> tuple[int, array[int]]:
        """Return the length of the longest suffix that was found and up to ``most`` next tokens."""
        if sequence not in self._live:
            return 0, array("i")
        length, end = self._text.find(sequence.token_ids[-_MOST_SUFFIX:])
        tokens = self._text.slice(end, end + most)
        if _BETWEEN in tokens:
            tokens = tokens[: tokens.index(_BETWEEN)]
        return length, tokens

    def reset(self) -> None:
        """Forget all texts; what runs is added when it has ended."""
        self._live.clear()  # those that run are wanted again, those that ended are not
        self._text = self._automaton()

    def check_integrity(self) -> None:
        """Raise AssertionError if more than ``capacity`` tokens are kept."""
        assert len(self._text) <= self._capacity, "more tokens are remembered than may be"

    def _take_in(self, tokens: array[int]) -> None:
        """Add a text; when the index is full, drop its older half and rebuild it."""
        room = self._capacity - len(self._text) - 1
        if len(tokens) > room:
            known = len(self._text)
            kept = self._text.slice(max(known - self._capacity // 2, 0), known)
            tokens = tokens[-min(len(tokens), self._capacity - len(kept) - 1) :]
            self._text = self._automaton(kept)
        self._text.extend(tokens)
        self._text.extend(array("i", [_BETWEEN]))


def _kind(length: int) -> int:
    """Return 0 for matches of up to 3 tokens, 1 up to 7, 2 up to 15, and 3 beyond."""
    return min(max(length.bit_length() - 2, 0), 3)
