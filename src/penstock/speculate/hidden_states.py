"""Assigns the hidden states of a finished step to the sequences that its tokens belong to."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.scheduler.output import ScheduledSequence, ScheduledStep
from penstock.scheduler.sequence import Status
from penstock.speculate.draft import HiddenRows

RUNNING = Status.RUNNING  # a name is cheaper than an enum's member


def hidden_rows(step: ScheduledStep, tokens: Sequence[list[int]]) -> list[HiddenRows]:
    """Return the rows of each sequence that still runs; of drafts, only the accepted path.

    ``step.samples[i]`` got ``tokens[i]``. Rows are numbered as in ``StepOutcome.features``: first
    those with logits, then the others. Sequences that were forked in this step share the rows of
    the one they were forked from.
    """
    if step.num_tokens == step.num_logits == len(step.samples) == len(step.sequences) and all(
        tokens
    ):
        # Each has one token, as in most steps.
        return [
            HiddenRows(each.sequence, each.start, (row,))
            for row, each in enumerate(step.sequences)
            if each.sequence.status is RUNNING
        ]
    assigned: list[HiddenRows] = []
    logits, hidden, sample = 0, step.num_logits, 0
    for each in step.sequences:
        rows: Sequence[int] = range(logits, logits + each.num_logits)
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
                assigned.append(HiddenRows(sequence, first, rows))
    return assigned


def _accepted(each: ScheduledSequence, rows: Sequence[int], drawn: list[int]) -> Sequence[int]:
    """Select the rows of the last known token and of the accepted part of its draft."""
    assert each.draft is not None
    return [rows[0], *(rows[1 + node] for node in each.draft.path(drawn[:-1]))]
