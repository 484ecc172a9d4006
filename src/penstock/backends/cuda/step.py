"""A step's arrays on the device: written to one pinned buffer, sent in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda.attention import TreeRows
from penstock.backends.cuda.attention_plan import tree_paths
from penstock.backends.cuda.pinned_buffers import PinnedBuffers
from penstock.interface.draft_tree import MAX_ROWS
from penstock.interface.step import Int32s, KvTables, StepInput

_ALIGNMENT = 16
"""Integers, 64 bytes. Kernels are compiled for aligned addresses: no other may come in a step."""


class DeviceTables(NamedTuple):
    """A :class:`~penstock.interface.step.KvTables` on the device. Where sequences' blocks start is
    in the work lists of attention."""

    slots: Tensor  # [T]
    block_ids: Tensor


@dataclass(frozen=True)
class DeviceStep:
    """A :class:`~penstock.interface.step.StepInput` on the device: int32 tensors of its shapes.

    Padding rows have token 0, position 0, features 0 and slot -1, to which nothing is written;
    padding sequences have one row or none and ``context_lens`` 0; attention leaves their rows
    alone. Rows of logits that are padding select row 0.
    """

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    query_starts: Tensor  # [S + 1]
    context_lens: Tensor  # [S]
    groups: tuple[DeviceTables, ...]
    selected_rows: Tensor  # [R + H] logit_rows, then hidden_rows
    block_copies: Tensor  # [C, 2]
    slot_moves: Tensor  # [M, 2]
    tree_paths: Tensor
    """``[rows, MAX_ROWS]`` of the rows behind forks, in order: where in its sequence's cache each
    token of the row's path behind the fork lies, its own last, then zeros."""
    features: Tensor  # [T, F] float32
    work: tuple[Tensor, ...] = ()
    """Attention's work lists for this step, in the order in which they were given."""
    adapter_lists: tuple[Tensor, ...] = ()
    """Those of ``adapter_rows.AdapterRows``, flat; none where the plan has no room for adapters."""
    num_hidden_rows: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context_lens)

    @property
    def num_logit_rows(self) -> int:
        return len(self.selected_rows) - self.num_hidden_rows

    @property
    def tree(self) -> TreeRows | None:
        """None where no sequence branches."""
        return TreeRows(self.positions, self.tree_paths) if len(self.tree_paths) else None


@dataclass(frozen=True)
class Layout:
    """The positions of a step's arrays in one int32 buffer. Block ids, of each group of layers,
    come last, as they vary most."""

    lengths: tuple[int, ...]
    offsets: tuple[int, ...]
    groups: int = 1
    adapter_lists: int = 0
    """Number of the lists of ``AdapterRows``."""

    @classmethod
    def of(cls, lengths: Sequence[int], groups: int = 1, adapter_lists: int = 0) -> Layout:
        offsets, end = [], 0
        for length in lengths:
            offsets.append(end)
            end += -(-length // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(lengths), tuple(offsets), groups, adapter_lists)

    @property
    def size(self) -> int:
        return self.offsets[-1] + -(-self.lengths[-1] // _ALIGNMENT) * _ALIGNMENT


def arrays_of(
    step: StepInput, work: Sequence[Int32s] = (), adapter_lists: Sequence[Int32s] = ()
) -> tuple[Int32s, ...]:
    """The arrays in the order of the buffer."""
    selected = step.logit_rows
    if len(step.hidden_rows):
        selected = np.concatenate([selected, step.hidden_rows])
    return (
        step.token_ids,
        step.positions,
        step.query_starts,
        step.context_lens,
        selected,
        step.block_copies,
        step.slot_moves,
        tree_paths(step),
        step.features.view(np.int32),  # bit by bit
        *work,
        *adapter_lists,
        *(tables.slots for tables in step.groups),
        *(tables.block_ids for tables in step.groups),
    )


def pad_step(step: StepInput, tokens: int, rows: int) -> StepInput:
    """A step grown to ``tokens`` tokens, ``rows`` of them with logits; its own come first.

    Every array has the length that it has in any other step grown so, whatever the step: those of
    sequences are as long as if each had one token. What is grown computes nothing that is kept. The
    step's hidden rows, tree, moves and adapters are left out.
    """
    own = step.num_tokens

    def grown(array: Int32s, length: int, value: int) -> Int32s:
        return np.concatenate([array, np.full(length - len(array), value, np.int32)])

    starts = step.query_starts
    singles = np.arange(own + 1, tokens + 1, dtype=np.int32)
    features = np.zeros((tokens - own, step.features.shape[1]), np.float32)
    return StepInput(
        token_ids=grown(step.token_ids, tokens, 0),
        positions=grown(step.positions, tokens, 0),
        query_starts=grown(np.concatenate([starts, singles]), tokens + 1, tokens),
        context_lens=grown(step.context_lens, tokens, 0),
        groups=tuple(
            KvTables(
                grown(slots, tokens, -1),
                grown(block_starts, tokens + 1, len(block_ids)),
                block_ids,
            )
            for slots, block_starts, block_ids in step.groups
        ),
        logit_rows=grown(step.logit_rows, rows, 0),  # there is a row 0, which is read anyway
        block_copies=step.block_copies,
        features=np.concatenate([step.features, features]),
    )


def padding(tokens: int, rows: int, feature_size: int = 0, groups: int = 1) -> StepInput:
    """A step of padding alone."""
    none, starts = np.empty(0, np.int32), np.zeros(1, np.int32)
    step = StepInput(
        token_ids=none,
        positions=none,
        query_starts=starts,
        context_lens=none,
        groups=(KvTables(none, starts, none),) * groups,
        logit_rows=none,
        block_copies=none.reshape(0, 2),
        features=np.empty((0, feature_size), np.float32),
    )
    return pad_step(step, tokens, rows)


def idle_step(tokens: int, logit_rows: int, feature_size: int = 0, groups: int = 1) -> StepInput:
    """A step of one sequence that writes nothing, copies a block onto itself, and would attend to
    nothing: to be launched with no work for attention."""
    zeros = np.zeros(tokens, np.int32)
    nowhere = KvTables(np.full(tokens, -1, np.int32), np.zeros(2, np.int32), np.empty(0, np.int32))
    return StepInput(
        token_ids=zeros,
        positions=zeros,
        query_starts=np.array([0, tokens], np.int32),
        context_lens=np.zeros(1, np.int32),
        groups=(nowhere,) * groups,
        logit_rows=np.arange(logit_rows, dtype=np.int32),
        block_copies=np.zeros((1, 2), np.int32),
        features=np.zeros((tokens, feature_size), np.float32),
    )


def idle_tree(feature_size: int = 0, groups: int = 1) -> StepInput:
    """Return an :func:`idle_step` of a token that two others follow; moves a slot onto itself,
    too."""
    parents, moves = np.array([-1, 0, 0], np.int32), np.zeros((1, 2), np.int32)
    return replace(idle_step(3, 3, feature_size, groups), tree_parents=parents, slot_moves=moves)


class StepBuffer:
    """Device memory for ``capacity`` int32, and pinned memory of that size for steps on the way."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._device = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._pinned = PinnedBuffers(capacity, torch.int32, device)

    def close(self) -> None:
        """Free both; nothing can be written any more."""
        self._device = self._device.new_empty(0)
        self._pinned = PinnedBuffers(0, torch.int32, self._device.device)

    @staticmethod
    def nbytes(capacity: int) -> int:
        """Number of bytes on the device."""
        return capacity * 4

    def write(self, layout: Layout, arrays: Sequence[Int32s]) -> None:
        """Send ``arrays``, each no longer than its place, on the current stream.

        Returns at once; waits only for the copy of two writes ago.
        """
        host = self._pinned.take()
        for offset, array in zip(layout.offsets, arrays, strict=True):
            host[offset : offset + array.size] = array.reshape(-1)
        self._pinned.send(self._device[: layout.offsets[-1] + arrays[-1].size])

    def views(self, layout: Layout, hidden_rows: int = 0) -> DeviceStep:
        """The device's memory as a step's tensors; what is in them changes with every write.

        The last ``hidden_rows`` of the selected rows are those without logits.
        """
        parts = [
            self._device[offset : offset + length]
            for offset, length in zip(layout.offsets, layout.lengths, strict=True)
        ]
        tokens, positions, starts, lens, rows, copies, moves, paths, features, *others = parts
        first = len(others) - 2 * layout.groups
        work = first - layout.adapter_lists
        slots, ids = others[first : first + layout.groups], others[first + layout.groups :]
        return DeviceStep(
            tokens,
            positions,
            starts,
            lens,
            tuple(map(DeviceTables, slots, ids)),
            rows,
            copies.view(-1, 2),
            moves.view(-1, 2),
            paths.view(-1, MAX_ROWS),
            features.view(torch.float32).view(len(tokens), len(features) // max(len(tokens), 1)),
            tuple(others[:work]),
            tuple(others[work:first]),
            hidden_rows,
        )
