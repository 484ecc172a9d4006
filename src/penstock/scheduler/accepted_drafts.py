"""Accepted drafts: how far they advance sequences, and which KV cache slots must move."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cache.kv_cache import KvCache
from penstock.scheduler.output import ScheduledSequence, SlotMove


class AcceptedDrafts:
    """Advances sequences over accepted drafts, and keeps the slot moves that this requires.

    Keys and values of rejected drafts lie beyond ``num_computed``: they are overwritten by the
    next step, and never published.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self.moves: list[SlotMove] = []
        """Moves that the next step must make first, whichever sequence owns the slots by then."""

    def take_in(self, each: ScheduledSequence, tokens: list[int]) -> list[int]:
        """Append the tokens that were drawn along the draft of a running sequence.

        Returns those appended; the sequence may have ended with them.
        """
        sequence, draft = each.sequence, each.draft
        assert draft is not None
        known = each.start + each.num_tokens - len(draft)
        appended = sequence.append(tokens)
        accepted = min(len(appended), max(len(tokens) - 1, 0))
        sequence.num_drafted += len(draft)
        sequence.num_accepted += accepted
        sequence.num_computed = known + accepted
        self.moves += moves_of(each, tokens[:accepted], self._cache.block_size)
        self._cache.commit(sequence.table, sequence.token_ids, known + accepted)
        if sequence.finish_reason is None:
            self._cache.trim(sequence.table)
        return appended


def moves_of(each: ScheduledSequence, accepted: Sequence[int], block_size: int) -> list[SlotMove]:
    """Return the moves that bring the keys and values of these accepted tokens to the slots of
    their positions.

    A tree's tokens were computed in consecutive slots after the known ones. Call it before the
    sequence gives blocks back. A token never moves up, so in ascending order none is overwritten
    before it was moved itself.
    """
    draft, table = each.draft, each.sequence.table
    if draft is None or draft.parents is None:
        return []
    known = each.start + each.num_tokens - len(draft)

    def slot(blocks: Sequence[int], at: int) -> int:
        return blocks[at // block_size] * block_size + at % block_size

    nodes = draft.path(accepted)
    return [
        (slot(blocks, known + node), slot(blocks, known + depth))
        for blocks in table.blocks
        for depth, node in enumerate(nodes)
        if node != depth
    ]
