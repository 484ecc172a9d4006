"""A step's arrays checked before they reach kernels, which would read and write where they say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.adapters import AdapterSlots
from penstock.interface.draft_tree import check_tree
from penstock.interface.step import Int32s, KvTables, StepInput


@dataclass(frozen=True)
class StepBounds:
    """The limits that a step must respect."""

    max_tokens: int
    max_sequences: int
    max_logit_rows: int
    max_selected_rows: int
    """Maximum number of rows that have logits or whose hidden states are returned."""
    max_positions: int
    max_block_ids: int
    num_blocks: int
    vocab_size: int
    feature_size: int = 0
    """Number of feature columns in a step."""
    groups: int = 1
    """Number of groups of layers that are cached."""
    adapters: AdapterSlots | None = None
    """The plan's room for adapters."""

    @property
    def max_slot_moves(self) -> int:
        """Maximum number of moved slots: an accepted token lies in one of each group."""
        return max(1, self.groups) * self.max_tokens

    def check(self, step: StepInput, placeholders: int = 0) -> None:
        """Raise ValueError on a step that is malformed or too large, naming what is wrong.

        ``placeholders``: so many tokens did the step before choose, for which ``~i`` may stand.
        """
        tokens, sequences = step.num_tokens, step.num_sequences
        if not 1 <= tokens <= self.max_tokens:
            raise ValueError(f"a step has 1 to {self.max_tokens} tokens, not {tokens}")
        if not 1 <= sequences <= self.max_sequences:
            raise ValueError(f"a step has 1 to {self.max_sequences} sequences, not {sequences}")
        logits = len(step.logit_rows)
        if logits > self.max_logit_rows:
            raise ValueError(
                f"a step has at most {self.max_logit_rows} rows of logits, not {logits}"
            )
        selected = logits + len(step.hidden_rows)
        if selected > self.max_selected_rows:
            raise ValueError(
                f"a step has at most {self.max_selected_rows} rows of logits and hidden states, "
                f"not {selected}"
            )
        if len(step.groups) != self.groups:
            raise ValueError(
                f"a step has tables of {len(step.groups)} groups of layers where {self.groups} are "
                "cached"
            )
        lengths = {len(step.positions), *(len(each.slots) for each in step.groups), tokens}
        starts = {len(each.block_starts) for each in step.groups}
        if len(lengths) > 1 or len({len(step.query_starts), *starts, sequences + 1}) > 1:
            raise ValueError("arrays of a step disagree in length")
        _ascends(step.query_starts, tokens, "query_starts", least=1)
        for tables in step.groups:
            self._check_tables(tables, step)
        _within(step.token_ids, self.vocab_size, "token id", least=-placeholders)
        _within(step.positions, self.max_positions, "position")
        _within(step.logit_rows, tokens, "logit row")
        _within(step.hidden_rows, tokens, "hidden row")
        _within(step.block_copies, self.num_blocks, "copied block")
        _within(step.slot_moves, self.num_blocks * BLOCK_SIZE, "moved slot")
        if len(step.slot_moves) > self.max_slot_moves:
            raise ValueError(
                f"a step moves at most {self.max_slot_moves} slots, not {len(step.slot_moves)}: no "
                "step before it accepted more"
            )
        last = step.positions[step.query_starts[1:] - 1] + 1
        if not len(step.tree_parents) and (last != step.context_lens).any():
            raise ValueError("context_lens do not agree with the positions and block tables")
        check_tree(step)
        step.check_features(self.feature_size)
        step.check_adapters(self.adapters)

    def _check_tables(self, tables: KvTables, step: StepInput) -> None:
        slots, block_starts, block_ids = tables
        if len(block_ids) > self.max_block_ids:
            raise ValueError(
                f"a step has at most {self.max_block_ids} block ids, not {len(block_ids)}"
            )
        _ascends(block_starts, len(block_ids), "block_starts (of block_ids)", least=0)
        _within(slots, self.num_blocks * BLOCK_SIZE, "slot")
        _within(block_ids, self.num_blocks, "block id")
        if (step.context_lens > np.diff(block_starts) * BLOCK_SIZE).any():
            raise ValueError("context_lens do not agree with the positions and block tables")
        first = step.groups[0].block_starts
        if block_starts is not first and not np.array_equal(block_starts, first):
            raise ValueError("block_starts of a step's groups of layers differ")


def _within(values: Int32s, end: int, what: str, least: int = 0) -> None:
    if values.size and (int(values.min()) < least or int(values.max()) >= end):
        bad = int(values.min()) if int(values.min()) < least else int(values.max())
        raise ValueError(f"{what} {bad} is outside {least} to {end - 1}")


def _ascends(starts: Int32s, end: int, what: str, least: int) -> None:
    if starts[0] != 0 or starts[-1] != end or (np.diff(starts) < least).any():
        raise ValueError(f"{what} must ascend from 0 to {end}")
