"""How many tokens to draft: as many as make tokens come fastest, by what was measured.

With acceptance a at every position, K drafts bring 1 + a + ... + a^K = (1 - a^(K+1)) / (1 - a)
tokens a step. They are worth it as long as that grows faster than the step's time, which grows with
the rows that verify them and with what drafting them takes. Both are measured here, and acceptance
by position, for each sequence. What is chosen steers time alone: the output is the same whatever
was drafted (:mod:`penstock.speculate.verify`), so it may depend on clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.speculate.acceptance import Acceptance
from penstock.speculate.costs import StepCosts

if TYPE_CHECKING:
    from penstock.engine.request import Sequence

_MARGIN = 1.02
"""Drafting must promise at least this much more: less is noise, and costs memory traffic."""
_PROBE = 2
"""Tokens of a draft that only looks whether drafting would pay again."""
_FIRST_PATIENCE, _MOST_PATIENCE, _RARELY = 16, 256, 512
"""Steps without a draft before such a look: a look costs about half a step, so one in 256 costs
0.2 %, and one in 16 three."""
_BETWEEN_LOOKS = 16
"""Steps from one such look to the next, whoever looks: in a batch, looks of each by itself would be
in nearly every step, and drafting for one takes a second model nearly as long as for all. What one
finds is told to all (``Acceptance``)."""
_STALE = 128
"""Steps after which the time of a step without drafts is measured again, by leaving them out."""


class Controller:
    """Chooses lengths of drafts. Not thread-safe."""

    def __init__(self, groups: int, num_tokens: int) -> None:
        self._groups = groups
        self._num_tokens = num_tokens
        self._common = Acceptance(groups, num_tokens)  # of all sequences
        self._steps = StepCosts()
        self._drafting: dict[int, StepCosts] = {}  # by the width of sequences; of K
        self._since_look = _BETWEEN_LOOKS  # steps

    def length(
        self, sequence: Sequence, group: int, most: int, decoding: int, drafting: int
    ) -> int:
        """How many tokens to draft for this sequence, at most ``most``; or to verify of a draft.

        ``decoding`` sequences are in the step, of which ``drafting`` may have drafts: what pays for
        one depends on what the others' rows cost. They are taken to be like this one.
        """
        record = self._record(sequence)
        best, best_rate = 0, _MARGIN
        plain = self._steps.seconds(decoding)
        if not self._steps.knows(decoding) or self._steps.age(decoding) > _STALE:
            return 0  # so that it is measured
        costs = self._drafting.get(drafting.bit_length())
        gain, reached, possible = 0.0, 1.0, 0.0
        reach = max(self._steps.most_rows * 1.5, self._steps.most_rows + 2)
        for count in range(1, min(most, self._num_tokens) + 1):
            reached *= record.rate(group, count - 1)
            gain += reached
            rows = decoding + drafting * count
            if count > 1 and rows > reach:
                break  # felt out little by little: in a large batch many rows may take long
            seconds = self._steps.seconds(rows)
            if costs is not None:
                seconds += costs.seconds(count)
            scale = plain / (decoding * max(seconds, plain * 0.5))
            possible = max(possible, rows * scale)
            rate = (decoding + drafting * gain) * scale
            if rate > best_rate:
                best, best_rate = count, rate
        if best:
            record.skipped, record.patience = 0, _FIRST_PATIENCE
            return best
        record.skipped += 1
        # Where it would not pay if all were accepted, only the times could change.
        if record.skipped < (record.patience if possible > _MARGIN else _RARELY):
            return 0
        if self._since_look < _BETWEEN_LOOKS:
            return 0
        self._since_look = 0
        record.skipped = 0
        record.patience = min(record.patience * 2, _MOST_PATIENCE)
        return min(_PROBE if decoding == 1 else 1, most)

    def verified(self, sequence: Sequence, group: int, drafted: int, accepted: int) -> None:
        """Of a draft of ``drafted`` tokens the first ``accepted`` were accepted."""
        self._record(sequence).add(group, drafted, accepted)

    def step_took(self, rows: int, seconds: float) -> None:
        """A step in which nothing but decoding and its drafts had rows."""
        self._since_look += 1
        self._steps.add(rows, seconds)

    def drafting_took(self, sequences: int, longest: int, seconds: float) -> None:
        """Drafting for so many sequences, of which the longest draft has so many tokens."""
        width = sequences.bit_length()
        if width not in self._drafting:
            self._drafting[width] = StepCosts(free=True)
        self._drafting[width].add(longest, seconds)

    def _record(self, sequence: Sequence) -> Acceptance:
        record = sequence.acceptance
        if record is None:
            record = Acceptance(self._groups, self._num_tokens, self._common)
            record.patience = _FIRST_PATIENCE
            sequence.acceptance = record
        assert isinstance(record, Acceptance)
        return record
