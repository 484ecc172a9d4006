"""Turns a scheduled step into the arrays that an executor reads."""

from __future__ import annotations

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import StepInput
from penstock.interface.step_builder import Tree, build_step, state_tables
from penstock.scheduler.output import ScheduledStep


def build_step_input(
    step: ScheduledStep, block_size: int = BLOCK_SIZE, caches: bool = True
) -> StepInput:
    """Build the step's arrays, fresh ones every time.

    ``caches``: whether the model has keys and values; else blocks count tokens alone.
    """
    scheduled = step.sequences
    tokens = [e.sequence.token_ids[e.start : e.start + e.num_tokens] for e in scheduled]
    trees: list[Tree] = []
    if step.num_drafted:
        for i, each in enumerate(scheduled):
            draft = each.draft
            if draft is not None:
                known, tokens[i] = len(tokens[i]), tokens[i] + draft.token_ids
                if draft.parents is not None:
                    trees.append(Tree(i, known, draft.parents))
    num_logits = num_hidden = None  # a step that only decodes has a row of logits for each token
    if step.num_logits < step.num_tokens:
        num_logits = [e.num_logits for e in scheduled]
        if step.num_hidden:
            num_hidden = [e.num_hidden for e in scheduled]
    states = None
    if step.states is not None:
        its = step.states
        states = state_tables(its.slots, its.seen, its.tentative, its.snapshots, its.copies)
    groups = range(len(scheduled[0].sequence.table.blocks) if caches else 0)
    tables = [[e.sequence.table.blocks[group] for e in scheduled] for group in groups]
    return build_step(
        tokens,
        [e.start for e in scheduled],
        tables,
        num_logits=num_logits,
        num_hidden=num_hidden,
        trees=trees,
        block_copies=step.block_copies,
        slot_moves=step.slot_moves,
        states=states,
        block_size=block_size,
        adapters=step.adapters or (),
    )
