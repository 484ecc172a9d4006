"""One step of the engine: the only objects that pass between scheduler and executor.

A sequence whose next tokens are guessed may run a *draft tree*: several continuations at once, of
which at most one path is accepted. Its rows are given parent before child and take consecutive
slots in that order, whatever their depth; ``tree_parents`` says which token each one follows.
Nothing else tells a row of a tree from any other, and a chain is a tree that does not branch.
If the accepted path is not at the start of these slots, the next step moves its keys and values
there (``slot_moves``); until then the slots count as not computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.interface.adapters import NO_ADAPTER, AdapterSlots

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]


def _no_rows() -> Int32s:
    return np.empty(0, np.int32)


class KvTables(NamedTuple):
    """Where the tokens of a step lie in the cache of one group of layers (``Plan.kv_groups``).

    The blocks of sequence ``s``, first to last, are ``block_ids[block_starts[s]:block_starts[s +
    1]]`` and cover at least its ``context_lens[s]`` slots; it has as many of them in every group. A
    block that lies behind what any row of the step sees in this group may be somebody else's by
    now: its id is a valid one, and nothing is read there.
    """

    slots: Int32s  # [T] block id * BLOCK_SIZE + offset, where this token's K and V go
    block_starts: Int32s  # [S + 1]
    block_ids: Int32s  # [block_starts[-1]]


def _no_snapshots() -> Int32s:
    return np.empty((0, 3), np.int32)


def _no_copies() -> Int32s:
    return np.empty((0, 2), np.int32)


@dataclass(frozen=True)
class StateTables:
    """Where the state of each sequence of a step lies, in all layers that keep one
    (``Plan.state_layers``). What ops do with it is said in ``penstock.plan.ops.state``.

    With ``first`` the position of a sequence's first row of the step, ``end`` that behind its last
    and ``log`` = ``Limits.state_log``: ``first - log <= seen <= first``, and ``seen <= end -
    tentative``. Slots are below ``Limits.num_states``.
    """

    slots: Int32s  # [S] the slot of each sequence, all distinct
    seen: Int32s  # [S] tokens that are in the slot's state; 0: it is zeros, and is not read
    tentative: Int32s
    """``[S]``: so many of the sequence's last rows may be taken back: they are logged, and not in
    the state that is stored. At most ``log``."""
    snapshots: Int32s = field(default_factory=_no_snapshots)
    """``[W, 3]`` of sequence, tokens seen, slot, ascending by sequence and then tokens: states to
    store in passing, with ``seen < tokens <= end - tentative``. The slots are distinct, and nobody
    else's of the step."""
    copies: Int32s = field(default_factory=_no_copies)
    """``[C, 2]`` (from, to) slots, copied whole and in order before any op runs."""


@dataclass(frozen=True)
class StepInput:
    """Everything that one step of the model needs, as arrays over concatenated tokens.

    ``T`` tokens of ``S`` sequences run in this step; sequence ``s`` owns the token rows
    ``query_starts[s]:query_starts[s + 1]``, which are the last of its ``context_lens[s]`` tokens in
    the cache, in order. Without a tree their positions are the last ones, too. ``groups`` says
    where they are cached, for each of the plan's groups of layers; a model without attention has
    none. ``R`` of the token rows get logits, and of ``H`` others only the hidden states are
    returned.
    """

    token_ids: Int32s  # [T]; ~i: a placeholder (interface.executor.Capabilities)
    positions: Int32s  # [T] of each token in its sequence, from 0; its parent's, and one
    query_starts: Int32s  # [S + 1]
    context_lens: Int32s  # [S] tokens in the cache after this step, those of a tree all counted
    groups: tuple[KvTables, ...]
    logit_rows: Int32s  # [R] ascending indices into the token rows
    block_copies: (
        Int32s  # [C, 2] (from, to) block ids, copied in order before any op runs; of any group
    )
    hidden_rows: Int32s = field(default_factory=_no_rows)
    """Token rows ``[H]`` whose hidden states are returned, ascending; none of them is in
    ``logit_rows``."""
    tree_parents: Int32s = field(default_factory=_no_rows)
    """``[T]``, or empty where no sequence branches. The row, counted from 0 within its sequence's
    rows of this step, of the token that each row's token follows; -1: the last before the step.

    ``[-1, 0, 1, ...]`` is a sequence that does not branch. Rows up to the first fork, of which all
    later ones descend, are its trunk; at most ``draft_tree.MAX_ROWS`` rows may follow them. A row
    sees what is cached from before the step, its ancestors and itself (of these, what its window
    holds), and its result is bitwise that of a step in which only they were run."""
    slot_moves: Int32s = field(default_factory=lambda: np.empty((0, 2), np.int32))
    """Moves of tokens within the KV cache, ``[M, 2]`` (from, to) slots. A token's keys and values
    are moved in every layer of the blocks' group. Moves are made in order, each seeing what those
    before it wrote. The contents of ``from`` are undefined afterwards.

    Moves come before ``block_copies``: they finish what an earlier step computed, so a copy of a
    block has what was moved into it, and a block that changed hands since is written last by its
    new owner.
    """
    features: Float32s = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """``[T, F]`` C-contiguous: what a head that drafts is given of each token beside its id
    (``Plan.feature_size`` columns). Of models that read none, empty: ``[T, 0]`` or ``[0, 0]``."""

    states: StateTables | None = None
    """Where the states of the step's sequences lie; None for a model whose layers keep none."""

    adapters: Int32s = field(default_factory=_no_rows)
    """``[S]``, or empty where no sequence of the step has one: the slot of each sequence's adapter
    (``Plan.adapters``), ``NO_ADAPTER`` for those without."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    def row_adapters(self) -> Int32s:
        """The adapter's slot of each token row; of a step that has any."""
        return np.repeat(self.adapters, np.diff(self.query_starts))

    def check_adapters(self, slots: AdapterSlots | None) -> None:
        """Raise ValueError unless ``adapters`` are slots of a plan that has these."""
        adapters = self.adapters
        if len(adapters) == 0:
            return
        if slots is None:
            raise ValueError("the step has adapters, and the plan has room for none")
        if len(adapters) != self.num_sequences:
            raise ValueError(
                f"the step has adapters of {len(adapters)} sequences for {self.num_sequences}"
            )
        if adapters.min() < NO_ADAPTER or adapters.max() >= slots.count:
            raise ValueError(f"the step has an adapter that is in none of {slots.count} slots")

    def check_features(self, columns: int) -> None:
        """Raise ValueError unless ``features`` fit a plan that reads ``columns`` feature
        columns."""
        features = self.features
        if columns == 0:
            if features.size:
                raise ValueError(
                    f"the step has features {list(features.shape)}, and the model reads none"
                )
            return
        expected = (len(self.token_ids), columns)
        if features.shape != expected:
            raise ValueError(
                f"the step has features {list(features.shape)}, and the model reads "
                f"{list(expected)}"
            )
        if features.dtype != np.float32 or not features.flags.c_contiguous:
            raise ValueError(
                f"the step's features are {features.dtype} with strides {features.strides}; "
                "they must be float32 and C-contiguous"
            )


@dataclass(frozen=True)
class StepResult:
    """The results of a step. The arrays are views that the next step overwrites.

    Of a device, what is asked for may be fetched only then (``backends/cuda/result.py``).
    """

    logits: Float32s  # [R, vocab_size]
    argmax: Int32s  # [R] index of the largest logit, the lowest on ties; of a NaN if there is one
    hidden: NDArray[Any] | None = None
    """Hidden states ``[R + H, hidden]`` of ``logit_rows`` and then of ``hidden_rows``, after the
    final norm. For a draft head, what its next row is given as features.

    float32, or ml_dtypes.bfloat16 where the output matrix reads that. None where a step wants no
    hidden rows and the executor keeps none.
    """
    taps: Float32s | None = None
    """Residual streams ``[R + H, F]`` of the same rows, at the input of each layer that the plan
    taps, side by side. None if it taps none."""
    more_logits: tuple[Float32s, ...] = ()
    """Logits ``[R, outputs]`` of each head after the first."""
    leaving: tuple[NDArray[Any], ...] = ()
    """What a stage of a pipeline hands on: ``[T, columns]`` each, float32 or a 16-bit type; or what
    a piece of a plan returns, ``[times * T, columns]``, int32 too. Whatever hands something on has
    no logits: theirs are ``[0, 0]``, and ``argmax`` is ``[0]``."""

    def peaks(self, rows: Int32s) -> Float32s:
        """The largest logit of each of these rows; a NaN of a row that has one."""
        largest: Float32s = self.logits[rows, self.argmax[rows]]
        return largest
