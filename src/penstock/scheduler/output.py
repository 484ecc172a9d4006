"""The scheduler's record of what a step computes; ``StepInput`` has the executor's arrays.

One record per sequence is made every step. As msgspec structs they cost a tenth of a microsecond,
a third of what named tuples or dataclasses cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from penstock.cache.kv_cache import BlockCopy
from penstock.cache.state_slots import StateCopy
from penstock.scheduler.draft import Draft
from penstock.scheduler.residents import AdapterLoad
from penstock.scheduler.sequence import SequenceState

if TYPE_CHECKING:
    from penstock.interface.sampler import SamplingState

SlotMove = tuple[int, int]
"""Source and target slot in the KV cache."""


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """Tokens ``start .. start + num_tokens - 1`` of a sequence, to be computed in this step.

    The last ``num_logits`` of them get logits: the row at position p predicts token p + 1. Of
    these, only the row of the last known token is sampled, and only if ``samples`` is not empty;
    the others are for ``prompt_logprobs``.

    With a ``draft``, the draft tokens are the last of ``num_tokens``, after the last known token.
    That token and all draft tokens have logits, from which the only sequence in ``samples`` draws
    one after the other, along one path if the draft is a tree.
    """

    sequence: SequenceState
    start: int
    num_tokens: int
    num_logits: int
    samples: tuple[SequenceState, ...]
    """The sequences that sample from the last row: none, this one, or this one and its siblings at
    once."""
    num_hidden: int = 0
    """Number of tokens, just before the logit rows, whose hidden states are returned."""
    draft: Draft | None = None


class StepStates(msgspec.Struct, frozen=True):
    """``StateTables`` (``interface/step.py``) of a step, as lists."""

    slots: list[int]
    seen: list[int]
    tentative: list[int]
    snapshots: list[tuple[int, int, int]]
    copies: list[StateCopy]


class ScheduledStep(msgspec.Struct, frozen=True):
    """What one step computes. Logits rows are numbered in the order of ``sequences``."""

    sequences: list[ScheduledSequence]
    samples: list[SequenceState]
    """The sequences that sample a token, in the order of ``sequences``."""
    sample_rows: list[int]
    """Row, for each of ``samples``, of the step's logits that it samples from; with a draft, the
    first of its rows."""
    block_copies: list[BlockCopy]
    """Executed in this order before anything else in the step."""
    num_tokens: int
    num_logits: int
    num_hidden: int = 0
    """Number of rows with hidden states but no logits, also numbered in the order of
    ``sequences``."""
    num_drafted: int = 0
    """Number of draft tokens, which ``num_tokens`` includes."""
    num_decoded: int = 0
    """Number of sequences that needed one token alone; the rest of ``num_tokens``, without drafts,
    is prefill."""
    slot_moves: list[SlotMove] = []
    """Moves that complete the acceptance of the previous step's drafts. Executed before
    ``block_copies`` (``StepInput.slot_moves``)."""
    states: StepStates | None = None
    """Where the states of ``sequences`` lie; None where layers keep none."""
    adapters: list[int] | None = None
    """The slot of each sequence's adapter; None where none of them has one."""
    adapter_loads: list[AdapterLoad] = []
    """What is written into slots of adapters before the step runs."""

    @property
    def sampling_states(self) -> list[SamplingState]:
        """The sampling state of each of ``samples``. All have one: only pooled sequences do not."""
        return cast("list[SamplingState]", [each.sampling_state for each in self.samples])


def scheduled(
    sequence: SequenceState, start: int, count: int, all_hidden: bool = False
) -> ScheduledSequence:
    """Return ``count`` tokens from the first uncomputed one, ``start``, with their purpose.

    ``all_hidden``: for their hidden states, too.
    """
    end = start + count
    if sequence.pooling is not None:
        hidden = max(0, end - max(start, sequence.num_prompt_rows))
        return ScheduledSequence(sequence, start, count, 0, (), num_hidden=hidden)
    samples: tuple[SequenceState, ...] = ()
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


def step_of(
    chosen: list[ScheduledSequence],
    copies: list[BlockCopy],
    moves: list[SlotMove],
    num_tokens: int,
    num_drafted: int,
    num_decoded: int,
    states: StepStates | None,
    adapter_loads: list[AdapterLoad],
) -> ScheduledStep:
    """Return the step of the ``chosen`` sequences, its samples and rows numbered in their order."""
    samples: list[SequenceState] = []
    rows: list[int] = []
    row, hidden, adapted = -1, 0, False
    for each in chosen:
        adapted = adapted or each.sequence.adapter is not None
        row += each.num_logits
        hidden += each.num_hidden
        for sequence in each.samples:
            samples.append(sequence)
            rows.append(row if each.draft is None else row - len(each.draft))
    return ScheduledStep(
        chosen,
        samples,
        rows,
        copies,
        num_tokens,
        row + 1,
        hidden,
        num_drafted,
        num_decoded,
        moves,
        states,
        [each.sequence.adapter_slot for each in chosen] if adapted else None,
        adapter_loads,
    )
