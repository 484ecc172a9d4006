"""What still fits in the step being composed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.scheduler.output import ScheduledSequence
from penstock.scheduler.sequence import SequenceState


@dataclass
class StepBudget:
    """The tokens that still fit in a step, and the rows of logits for log-probabilities of
    prompts."""

    tokens: int
    prompt_rows: int

    def most(self, sequence: SequenceState, count: int) -> int:
        """Return how many of the sequence's next ``count`` tokens still fit."""
        if count > self.tokens:
            count = self.tokens
        if sequence.wants_prompt_rows:
            if self.prompt_rows == 0:
                return 0
            start = sequence.num_computed
            # What lies before the first wanted row was returned already and needs none again.
            end = max(start, sequence.num_prompt_rows) + self.prompt_rows
            count = min(count, end - start)
        return count

    def take(self, scheduled: ScheduledSequence) -> None:
        """Account for a sequence that is in the step now."""
        self.tokens -= scheduled.num_tokens
        if scheduled.sequence.wants_prompt_rows:
            self.prompt_rows -= scheduled.num_logits
