"""What a step of the engine computes, in the scheduler's terms; ``StepInput`` is the executor's.

One record per sequence is made every step. As msgspec structs they cost a tenth of a microsecond,
a third of what named tuples or dataclasses cost.
"""

from __future__ import annotations

import msgspec

from penstock.cache.kv_cache import BlockCopy
from penstock.scheduler.draft import Draft
from penstock.scheduler.sequence import Sequence

SlotMove = tuple[int, int]
"""From a slot of the cache to another."""


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """Tokens ``start .. start + num_tokens - 1`` of a sequence, to be computed in this step.

    The last ``num_logits`` of them get logits: the row at position p tells of token p + 1.
    Of these, only the row of the last known token is sampled, and only if ``samples`` is not
    empty; the others are for ``prompt_logprobs``.

    With a ``draft``, its tokens are the last of ``num_tokens``, behind the last known one, and all
    of them and the last known one have logits, from which the one of ``samples`` draws in turn,
    along one path where the draft is a tree.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    num_logits: int
    samples: tuple[Sequence, ...]
    """Who draws from the last row: nobody, the sequence, or it and its siblings at once."""
    num_hidden: int = 0
    """Of so many tokens before those with logits the hidden states are told."""
    draft: Draft | None = None


class ScheduledStep(msgspec.Struct, frozen=True):
    """What one step computes. Logits rows are numbered in the order of ``sequences``."""

    sequences: list[ScheduledSequence]
    samples: list[Sequence]
    """Who draws a token, in the order of ``sequences``."""
    sample_rows: list[int]
    """From which row of the step's logits each of ``samples`` draws; with a draft, the first of
    its rows."""
    block_copies: list[BlockCopy]
    """Executed in this order before anything else in the step."""
    num_tokens: int
    num_logits: int
    num_hidden: int = 0
    """Rows of hidden states without logits, numbered in the order of ``sequences``, too."""
    num_drafted: int = 0
    """Of ``num_tokens``, those that are drafts."""
    slot_moves: list[SlotMove] = []
    """Finish what the step before accepted; before ``block_copies`` (``StepInput.slot_moves``)."""


def scheduled(
    sequence: Sequence, start: int, count: int, all_hidden: bool = False
) -> ScheduledSequence:
    """``count`` tokens from the first uncomputed one, ``start``, and what they are wanted for.

    ``all_hidden``: for their hidden states, too.
    """
    end = start + count
    if sequence.pooler is not None:
        hidden = max(0, end - max(start, sequence.num_prompt_rows))
        return ScheduledSequence(sequence, start, count, 0, (), num_hidden=hidden)
    samples: tuple[Sequence, ...] = ()
    num_logits = 0
    if end == len(sequence.token_ids):
        num_logits = 1
        samples = (sequence,)
        if sequence.siblings and sequence.num_output_tokens == 0:
            samples = (sequence, *sequence.siblings)
    if sequence.wants_prompt_rows:
        num_logits = max(0, end - max(start, sequence.num_prompt_rows))
    hidden = count - num_logits if all_hidden else 0
    return ScheduledSequence(sequence, start, count, num_logits, samples, hidden)
