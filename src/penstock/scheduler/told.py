"""What whoever sent a request is told of a step."""

from __future__ import annotations

from penstock.interface.messages import SequenceUpdate
from penstock.scheduler.sequence import Sequence


def told(sequence: Sequence, tokens: list[int]) -> SequenceUpdate:
    """Return the update that tells what a sequence got, and its end if it has ended."""
    update = SequenceUpdate(  # by place: with names 64 sequences take 3 us longer
        sequence.request_id,
        sequence.index,
        tokens,
        None,
        None,
        sequence.num_cached_tokens,
        sequence.finish_reason,
        sequence.stop_reason,
        None,
        sequence.scheduled_at,
    )
    if sequence.num_drafted:
        update.num_drafted = sequence.num_drafted
        update.num_accepted = sequence.num_accepted
    if sequence.completed:
        update.ends_in_text = True
    return update
