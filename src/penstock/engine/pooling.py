"""Hands a step's hidden states to the poolers of embedding requests, and their results to
updates."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from penstock.errors import RequestError
from penstock.interface.messages import FinishReason, SequenceUpdate
from penstock.pooling.pooler import Pooler
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import SequenceState, Slot


class Embeddings:
    """The embeddings that an engine computes, each of the hidden states of several steps."""

    def __init__(self) -> None:
        self._poolers: Slot[Pooler] = Slot()

    def give_rows(self, step: ScheduledStep, hidden: NDArray[Any]) -> None:
        """Take in ``hidden``, ``[num_hidden, hidden size]`` of the step that was executed."""
        row = 0
        for each in step.sequences:
            if each.num_hidden and each.sequence.pooling is not None:
                end = each.start + each.num_tokens
                rows = hidden[row : row + each.num_hidden]
                self._pooler(each.sequence).take(end - each.num_hidden, rows)
            row += each.num_hidden

    def vector(self, sequence: SequenceState) -> bytes:
        """Return the embedding of a sequence all of whose rows were given.

        Raises RequestError where it has no finite value.
        """
        return self._pooler(sequence).vector()

    def add_to(self, updates: list[SequenceUpdate], step: ScheduledStep) -> None:
        """Put the embeddings of those that ended with ``step`` into their updates, or the error."""
        pooled = {e.sequence.request_id: e.sequence for e in step.sequences if e.num_hidden}
        for update in updates:
            sequence = pooled.get(update.request_id)
            if sequence is None or sequence.pooling is None:
                continue
            try:
                update.embedding = self.vector(sequence)
            except RequestError as error:
                update.finish_reason, update.error = FinishReason.ERROR, str(error)

    def _pooler(self, sequence: SequenceState) -> Pooler:
        pooler = self._poolers.get(sequence)
        if pooler is None:
            assert sequence.pooling is not None
            pooler = Pooler(sequence.pooling, sequence.num_prompt_tokens)
            self._poolers.set(sequence, pooler)
        return pooler
