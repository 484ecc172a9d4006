"""Which of a step's hidden states are of tokens that belong to a sequence, now that it is over."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from penstock.scheduler.output import ScheduledSequence, ScheduledStep
from penstock.scheduler.sequence import Status
from penstock.speculate.draft import Told

RUNNING = Status.RUNNING  # a name is cheaper than an enum's member


def told_of(step: ScheduledStep, tokens: Seq[list[int]]) -> list[Told]:
    """Of the sequences that go on; of drafts, those on the path that was accepted.

    ``tokens[i]``, if any, were drawn for ``step.samples[i]``. Rows are numbered as in
    ``StepResult.hidden``: first those with logits, then the others. Siblings that are forked in
    this step are told what their leader is.
    """
    if step.num_tokens == step.num_logits == len(step.samples) == len(step.sequences) and all(
        tokens
    ):
        # Each has one token, as in most steps.
        return [
            Told(each.sequence, each.start, (row,))
            for row, each in enumerate(step.sequences)
            if each.sequence.status is RUNNING
        ]
    told: list[Told] = []
    logits, hidden, sample = 0, step.num_logits, 0
    for each in step.sequences:
        rows: Seq[int] = range(logits, logits + each.num_logits)
        first = each.start + each.num_tokens - each.num_logits
        if each.draft is not None:
            rows = _accepted(each, rows, tokens[sample])
        elif each.num_hidden:
            rows = [*range(hidden, hidden + each.num_hidden), *rows]
            first -= each.num_hidden
        if each.samples and not tokens[sample]:
            rows = rows[: -1 if each.draft is None else 0]  # computed again when it draws
        logits += each.num_logits
        hidden += each.num_hidden
        sample += len(each.samples)
        for sequence in each.samples or (each.sequence,):
            if rows and sequence.status is RUNNING:
                told.append(Told(sequence, first, rows))
    return told


def _accepted(each: ScheduledSequence, rows: Seq[int], drawn: list[int]) -> Seq[int]:
    """Of the rows of the last known token and of a draft."""
    assert each.draft is not None
    return [rows[0], *(rows[1 + node] for node in each.draft.path(drawn[:-1]))]
