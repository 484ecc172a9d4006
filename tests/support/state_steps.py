"""The state slots of steps that are built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.interface.step import StateTables, StepInput


def with_states(
    step: StepInput,
    slots: Sequence[int] | None = None,
    seen: Sequence[int] | None = None,
    tentative: Sequence[int] | None = None,
    snapshots: Sequence[tuple[int, int, int]] = (),
    copies: Sequence[tuple[int, int]] = (),
) -> StepInput:
    """The step over state slots: by default of the number of a sequence's first block, and of
    states that have seen all tokens before the step."""
    tables, rows = step.groups[0], np.diff(step.query_starts)
    first = step.context_lens - rows
    return replace(
        step,
        states=StateTables(
            slots=_ints(tables.block_ids[tables.block_starts[:-1]] if slots is None else slots),
            seen=_ints(first if seen is None else seen),
            tentative=_ints(np.zeros_like(rows) if tentative is None else tentative),
            snapshots=_ints(np.reshape(snapshots, (-1, 3))),
            copies=_ints(np.reshape(copies, (-1, 2))),
        ),
    )


def _ints(values: object) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
