"""Steps as bytes, for the processes of other ranks."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.interface.step import Int32s, KvTables, StateTables, StepInput

Tables = tuple[bytes, bytes, bytes]
States = tuple[bytes, bytes, bytes, bytes, bytes]


class StepFrame(msgspec.Struct, tag="step", frozen=True):
    """A :class:`~penstock.interface.step.StepInput`, whose arrays are the bytes of int32, and those
    of features of float32, row by row."""

    token_ids: bytes
    positions: bytes
    query_starts: bytes
    context_lens: bytes
    groups: list[Tables]
    logit_rows: bytes
    hidden_rows: bytes
    block_copies: bytes
    tree_parents: bytes
    slot_moves: bytes
    features: bytes
    feature_cols: int
    states: States | None


def encoded(step: StepInput) -> StepFrame:
    """Return the frame of a step."""
    states = step.states
    return StepFrame(
        step.token_ids.tobytes(),
        step.positions.tobytes(),
        step.query_starts.tobytes(),
        step.context_lens.tobytes(),
        [(t.slots.tobytes(), t.block_starts.tobytes(), t.block_ids.tobytes()) for t in step.groups],
        step.logit_rows.tobytes(),
        step.hidden_rows.tobytes(),
        step.block_copies.tobytes(),
        step.tree_parents.tobytes(),
        step.slot_moves.tobytes(),
        step.features.tobytes(),
        step.features.shape[1],
        None
        if states is None
        else (
            states.slots.tobytes(),
            states.seen.tobytes(),
            states.tentative.tobytes(),
            states.snapshots.tobytes(),
            states.copies.tobytes(),
        ),
    )


def decoded(frame: StepFrame) -> StepInput:
    """Return the step of a frame; its arrays are views of the frame's bytes, read-only."""
    states = None
    if frame.states is not None:
        slots, seen, tentative, snapshots, copies = map(_ints, frame.states)
        states = StateTables(
            slots, seen, tentative, snapshots.reshape(-1, 3), copies.reshape(-1, 2)
        )
    features: NDArray[Any] = np.frombuffer(frame.features, np.float32)
    rows = features.size // frame.feature_cols if frame.feature_cols else 0
    return StepInput(
        token_ids=_ints(frame.token_ids),
        positions=_ints(frame.positions),
        query_starts=_ints(frame.query_starts),
        context_lens=_ints(frame.context_lens),
        groups=tuple(KvTables(*map(_ints, tables)) for tables in frame.groups),
        logit_rows=_ints(frame.logit_rows),
        block_copies=_ints(frame.block_copies).reshape(-1, 2),
        hidden_rows=_ints(frame.hidden_rows),
        tree_parents=_ints(frame.tree_parents),
        slot_moves=_ints(frame.slot_moves).reshape(-1, 2),
        features=features.reshape(rows, frame.feature_cols),
        states=states,
    )


def _ints(data: bytes) -> Int32s:
    return np.frombuffer(data, np.int32)
