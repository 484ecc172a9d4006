"""The steps in flight: submitted to the executor, with results not taken in yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from penstock.cache.kv_cache import KvCache
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import SequenceState, Status


class InFlight:
    """The steps in flight: fewer than ``depth`` while a step is scheduled, and at most so many
    between its submission and taking in the first.

    It stays empty where every step is taken in before the next.
    """

    def __init__(self, depth: int = 2) -> None:
        self._depth = depth
        self.steps: deque[ScheduledStep] = deque()
        self._barred: set[SequenceState] = set()

    def submit(self, step: ScheduledStep, cache: KvCache) -> None:
        """Count what the step computes as computed, and put placeholders for what it samples."""
        assert len(self.steps) < self._depth, f"more than {self._depth} steps in flight"
        self.steps.append(step)
        for each in step.sequences:
            sequence = each.sequence
            end = sequence.num_computed = each.start + each.num_tokens
            cache.submitted(sequence.table, end)
            if sequence.wants_prompt_rows:
                sequence.prompt_rows_given(end)
        for i, sequence in enumerate(step.samples):
            if sequence.runs_ahead and len(sequence.token_ids) + 1 < sequence.max_total_tokens:
                sequence.token_ids.append(~i)

    def involves(self, sequence: SequenceState) -> bool:
        """Whether a step computes or samples the sequence."""
        return any(_involves(step, sequence) for step in self.steps)

    def brings_place(self, cache: KvCache) -> bool:
        """Whether a sequence finds a block of every group once all steps are taken in, which give
        back what lies behind windows, and what sequences hold that end."""
        if not self.steps:
            return False
        reached: dict[SequenceState, int] = {}
        for step in self.steps:
            for each in step.sequences:
                if each.sequence.status is Status.RUNNING:
                    reached[each.sequence] = each.start + each.num_tokens
        freed = [sequence.table for sequence in reached if _ends(sequence)]
        published = [(s.table, end) for s, end in reached.items() if not _ends(s)]
        return cache.has_place_after(published, freed)

    def bar(self, sequence: SequenceState) -> None:
        """Note that the sequence was made to wait while a step computes it.

        It may not be admitted before it has landed: its token is not known, and what its step
        wrote must not be taken for the content of new blocks.
        """
        self._barred.add(sequence)

    def bars(self, sequence: SequenceState) -> bool:
        return sequence in self._barred

    def land(self, step: ScheduledStep) -> None:
        """Note that the step is taken in; steps land in the order of their submissions."""
        first = self.steps.popleft()
        assert first is step, "a step was taken in out of order"
        if self._barred:
            self._barred = {sequence for sequence in self._barred if self.involves(sequence)}

    def check_integrity(self, live: Iterable[SequenceState]) -> None:
        """Raise AssertionError unless every placeholder is for a token of a step in flight."""
        for sequence in live:
            tokens = sequence.token_ids
            known = sum(token >= 0 for token in tokens)
            assert all(token < 0 for token in tokens[known:]), (
                "a token is known after a placeholder"
            )
            assert known >= sequence.num_prompt_tokens, "a prompt token is a placeholder"
            placed = [
                any(~token < len(s.samples) and s.samples[~token] is sequence for s in self.steps)
                for token in tokens[known:]
            ]
            assert all(placed), "a placeholder is of no step in flight"
            left = len(tokens) - sequence.num_computed
            waits = sequence.is_beam or self.involves(sequence)
            assert left > 0 or (left == 0 and waits), "nothing left to compute"
        assert all(map(self.involves, self._barred)), "a sequence is barred for ever"


def _ends(sequence: SequenceState) -> bool:
    """Whether a running sequence is sure to have ended when the step in flight that has it is taken
    in: all of its tokens are computed, and it can have one more, or none."""
    known = len(sequence.token_ids)
    if sequence.num_computed < known or sequence.matcher is not None:  # a mask may come late
        return False
    return sequence.pooling is not None or known + 1 >= sequence.max_total_tokens


def _involves(step: ScheduledStep, sequence: SequenceState) -> bool:
    return sequence in step.samples or any(e.sequence is sequence for e in step.sequences)
