"""The states of a step's sequences: in which slots they lie, and which are stored on the way."""

from __future__ import annotations

from penstock.cache.block_table import BlockTable
from penstock.cache.kv_cache import KvCache
from penstock.scheduler.output import ScheduledSequence, StepStates


def step_states(cache: KvCache, chosen: list[ScheduledSequence]) -> StepStates | None:
    """Compose the states of a step of the ``chosen`` sequences, which is submitted next; None where
    layers keep none."""
    if not cache.keeps_states:
        return None
    states = StepStates([], [], [], [], cache.take_state_copies())
    reached: list[tuple[BlockTable, int]] = []
    for each in chosen:
        table = each.sequence.table
        assert table.state is not None
        states.slots.append(table.state.slot)
        states.seen.append(table.state.seen)
        tentative = _tentative(each)
        states.tentative.append(tentative)
        reached.append((table, each.start + each.num_tokens - tentative))
    for i, snapshots in enumerate(cache.compose_states(reached)):
        states.snapshots.extend((i, tokens, slot) for tokens, slot in snapshots)
    return states


def _tentative(each: ScheduledSequence) -> int:
    """Number of the last tokens that may be taken back: drafts, and the last known token where the
    mask of the next may come late."""
    drafts = 0 if each.draft is None else len(each.draft)
    return drafts + (1 if each.samples and each.sequence.matcher is not None else 0)
