"""Hands a step's hidden states to the poolers of embedding requests, and their results to
updates."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from penstock.errors import RequestError
from penstock.interface.messages import FinishReason, SequenceUpdate
from penstock.scheduler.output import ScheduledStep


def give_rows(step: ScheduledStep, hidden: NDArray[Any]) -> None:
    """``hidden``: ``[num_hidden, hidden size]`` of the step that was executed."""
    row = 0
    for each in step.sequences:
        if each.num_hidden and each.sequence.pooler is not None:
            end = each.start + each.num_tokens
            rows = hidden[row : row + each.num_hidden]
            each.sequence.pooler.take(end - each.num_hidden, rows)
        row += each.num_hidden


def add_embeddings(updates: list[SequenceUpdate], step: ScheduledStep) -> None:
    """Put the embeddings of those that ended with ``step`` into their updates, or the error."""
    poolers = {e.sequence.request_id: e.sequence.pooler for e in step.sequences if e.num_hidden}
    for update in updates:
        pooler = poolers.get(update.request_id)
        if pooler is None:
            continue
        try:
            update.embedding = pooler.vector()
        except RequestError as error:
            update.finish_reason, update.error = FinishReason.ERROR, str(error)
