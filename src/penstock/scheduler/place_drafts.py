"""Places draft tokens in the step being composed."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledSequence
from penstock.scheduler.sequence import SequenceState


def place_drafts(
    cache: KvCache,
    chosen: list[ScheduledSequence],
    drafts: Mapping[SequenceState, Draft],
    budget: int,
    copies: list[BlockCopy],
) -> int:
    """Add drafts to the step's sequences as far as budget and blocks last; return the tokens added.

    None reaches the length at which its sequence ends: of what a step draws, the last token
    is not drafted.
    """
    left = budget
    for i, each in enumerate(chosen):
        sequence = each.sequence
        draft = drafts.get(sequence)
        if draft is None or each.samples != (sequence,) or each.num_tokens != 1:
            continue
        end = each.start + 1
        count = min(
            len(draft),
            left,
            sequence.max_total_tokens - end - 1,
            cache.num_fitting(sequence.table, each.start) - 1,
        )
        if count <= 0:
            continue
        fits = cache.extend(sequence.table, each.start, end + count, copies)
        assert fits, "more than num_fitting"
        rows = 1 + count
        chosen[i] = ScheduledSequence(
            sequence, each.start, rows, rows, each.samples, draft=draft.cut(count)
        )
        left -= count
    return budget - left
