"""The shape of a step's state tables, as executors need it."""

from __future__ import annotations

import numpy as np

from penstock.interface.step import Int32s, StateTables, StepInput


def check_states(step: StepInput, num_states: int, log: int) -> None:
    """Raise ValueError where ``step.states`` break what :class:`StateTables` says.

    ``num_states`` and ``log`` are ``Limits.num_states`` and ``Limits.state_log``; with no slots,
    the model keeps no states. ``step.query_starts`` and ``step.context_lens`` must have been
    checked.
    """
    states = step.states
    if num_states == 0:
        if states is not None:
            raise ValueError("the step has state slots, and the model's layers keep no states")
        return
    if states is None:
        raise ValueError("the step has no state slots, and layers of the model keep states")
    if len(step.tree_parents):
        raise ValueError("the step has a draft tree, and states follow one line of tokens")
    count = step.num_sequences
    for name in ("slots", "seen", "tentative"):
        shape = getattr(states, name).shape
        if shape != (count,):
            raise ValueError(
                f"states.{name} of the step is {list(shape)} for {count} sequences: one each"
            )
    for name, columns in (("snapshots", 3), ("copies", 2)):
        shape = getattr(states, name).shape
        if shape[1:] != (columns,):
            raise ValueError(f"states.{name} of the step is {list(shape)}, not [n, {columns}]")
    _check_slots(states, num_states)
    rows = np.diff(step.query_starts)
    _check_tokens(states, step.context_lens - rows, rows, log)
    if len(states.snapshots):
        _check_snapshots(states, step.context_lens, count)


def _check_slots(states: StateTables, num_states: int) -> None:
    for name, slots in (
        ("slots", states.slots),
        ("snapshots", states.snapshots[:, 2]),
        ("copies", states.copies),
    ):
        if slots.size and not 0 <= slots.min() <= slots.max() < num_states:
            raise ValueError(
                f"states.{name} of the step name slots {slots.min()} to {slots.max()}, and there "
                f"are slots 0 to {num_states - 1}"
            )
    written = np.concatenate([states.slots, states.snapshots[:, 2]])
    if len(np.unique(written)) < len(written):
        raise ValueError("the step names a state slot twice: each sequence has its own")


def _check_tokens(states: StateTables, first: Int32s, rows: Int32s, log: int) -> None:
    """``first`` has the position of each sequence's first row, of so many ``rows``."""
    ahead = first - states.seen
    s = _first_wrong((ahead < 0) | (ahead > log) | (states.seen < 0))
    if s is not None:
        raise ValueError(
            f"the state of sequence {s} of the step has seen {states.seen[s]} tokens, and the step "
            f"goes on from {first[s]}; it may lag by 0 to {log}"
        )
    tentative = states.tentative
    s = _first_wrong((tentative < 0) | (tentative > np.minimum(rows, log)))
    if s is not None:
        raise ValueError(
            f"{tentative[s]} of {rows[s]} rows of sequence {s} of the step may be taken back; at "
            f"most {min(rows[s], log)} may"
        )


def _check_snapshots(states: StateTables, ends: Int32s, count: int) -> None:
    sequences, tokens = states.snapshots[:, 0], states.snapshots[:, 1]
    if sequences.min() < 0 or sequences.max() >= count:
        raise ValueError("states.snapshots of the step name a sequence that it does not have")
    order = np.lexsort((tokens, sequences))
    if (order != np.arange(len(order))).any():
        raise ValueError("states.snapshots of the step do not ascend by sequence and tokens")
    last = ends[sequences] - states.tentative[sequences]
    i = _first_wrong((tokens <= states.seen[sequences]) | (tokens > last))
    if i is not None:
        raise ValueError(
            f"a snapshot of sequence {sequences[i]} of the step is of {tokens[i]} tokens; its "
            f"state goes from {states.seen[sequences[i]]} to {last[i]}"
        )


def _first_wrong(wrong: np.ndarray) -> int | None:
    places = np.flatnonzero(wrong)
    return int(places[0]) if len(places) else None
