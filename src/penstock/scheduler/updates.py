"""Makes updates, which report a sequence's new tokens to the client of its request."""

from __future__ import annotations

from penstock.interface.messages import SequenceUpdate
from penstock.scheduler.sequence import SequenceState


def sequence_update(sequence: SequenceState, tokens: list[int]) -> SequenceUpdate:
    """Return the update with a sequence's new tokens, and its finish reason if it has ended."""
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
    if sequence.num_restored_tokens:
        update.num_restored_tokens = sequence.num_restored_tokens
        update.num_host_tokens = sequence.num_host_tokens
    if sequence.completed:
        update.ends_in_text = True
    return update
