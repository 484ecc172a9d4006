"""Room in a step for tokens that may follow the known ones, and where those accepted belong."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledSequence, SlotMove
from penstock.scheduler.sequence import Sequence


def place_drafts(
    cache: KvCache,
    chosen: list[ScheduledSequence],
    drafts: Mapping[Sequence, Draft],
    budget: int,
    copies: list[BlockCopy],
) -> int:
    """Put drafts behind those in the step, as far as there is room; returns how many tokens.

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
            cache.room(sequence.table, each.start) - 1,
        )
        if count <= 0:
            continue
        fits = cache.extend(sequence.table, each.start, end + count, copies)
        assert fits, "there was room"
        rows = 1 + count
        chosen[i] = ScheduledSequence(
            sequence, each.start, rows, rows, each.samples, draft=draft.cut(count)
        )
        left -= count
    return budget - left


def moves_of(each: ScheduledSequence, accepted: Seq[int], block_size: int) -> list[SlotMove]:
    """What brings the keys and values of these accepted tokens to the slots of their positions.

    A tree's tokens were computed in slots behind the known ones, one after the other. To be asked
    before the sequence gives blocks back. A token never moves up, so in ascending order none is
    overwritten before it was moved itself.
    """
    draft, blocks = each.draft, each.sequence.table.block_ids
    if draft is None or draft.parents is None:
        return []
    known = each.start + each.num_tokens - len(draft)

    def slot(at: int) -> int:
        return blocks[at // block_size] * block_size + at % block_size

    nodes = draft.path(accepted)
    return [
        (slot(known + node), slot(known + depth))
        for depth, node in enumerate(nodes)
        if node != depth
    ]
