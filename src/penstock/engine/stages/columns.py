"""What a stage takes of a step, and what it hands on, as arrays and as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.interface.step import Float32s, StepInput, StepResult
from penstock.peers.channel import Payload
from penstock.plan.ops import Buffer
from penstock.plan.stages import Stage
from penstock.processes.frames import WireError
from penstock.weights.tensor_file import NUMPY_DTYPES

_NO_ROWS = np.empty(0, np.int32)


def own_step(stage: Stage, step: StepInput, payload: Payload) -> StepInput:
    """Return the part of ``step`` that ``stage`` runs, with what the stage before has handed on.

    Raises WireError where that does not fit.
    """
    groups = len(step.groups)
    if any(group >= groups for group in stage.groups):
        raise WireError(f"a step has tables of {groups} groups of layers, fewer than the model's")
    rows = {} if stage.is_last else {"logit_rows": _NO_ROWS, "hidden_rows": _NO_ROWS}
    return replace(
        step,
        groups=tuple(step.groups[group] for group in stage.groups),
        features=_features(stage.entering, step.num_tokens, payload),
        states=step.states if stage.plan.state_layers else None,
        **rows,
    )


def handed_on(stage: Stage, result: StepResult) -> list[Payload]:
    """Return the bytes of what the stage hands on, of each buffer in its own element type."""
    return [
        np.ascontiguousarray(array, _dtype(stage.plan.buffers[name])).reshape(-1).view(np.uint8)
        for name, array in zip(stage.plan.leaving, result.leaving, strict=True)
    ]


def _features(entering: Sequence[Buffer], tokens: int, payload: Payload) -> Float32s:
    """The buffers side by side, ``[tokens, columns]``."""
    sizes = [tokens * buffer.row_bytes for buffer in entering]
    if len(payload) != sum(sizes):
        raise WireError(
            f"a step of {tokens} tokens comes with {len(payload)} bytes of "
            f"{[buffer.name for buffer in entering]}, which take {sum(sizes)}"
        )
    arrays: list[Float32s] = []
    for buffer, size in zip(entering, sizes, strict=True):
        own, payload = payload[:size], payload[size:]
        rows = own.view(_dtype(buffer)).reshape(tokens, buffer.cols)
        arrays.append(rows.astype(np.float32, copy=False))
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays, axis=1) if arrays else np.empty((0, 0), np.float32)


def _dtype(buffer: Buffer) -> np.dtype[np.generic]:
    assert buffer.element != "int32", "numbers of experts do not leave a stage"
    return np.dtype(NUMPY_DTYPES[buffer.element])
