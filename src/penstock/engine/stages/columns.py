"""What a stage takes of a step, and what it hands on, as arrays and as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.interface.step import Float32s, StepInput, StepResult
from penstock.plan.ops import Buffer
from penstock.plan.stages import Stage
from penstock.processes.frames import WireError
from penstock.weights.tensor_file import NUMPY_DTYPES

_NO_ROWS = np.empty(0, np.int32)


def own_step(stage: Stage, step: StepInput, columns: Sequence[bytes]) -> StepInput:
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
        features=_features(stage.entering, step.num_tokens, columns),
        states=step.states if stage.plan.state_layers else None,
        **rows,
    )


def handed_on(stage: Stage, result: StepResult) -> list[bytes]:
    """Return the bytes of what the stage hands on, each buffer in its own element type."""
    return [
        array.astype(_dtype(stage.plan.buffers[name]), copy=False).tobytes()
        for name, array in zip(stage.plan.leaving, result.leaving, strict=True)
    ]


def _features(entering: Sequence[Buffer], tokens: int, columns: Sequence[bytes]) -> Float32s:
    """The buffers side by side, ``[tokens, columns]``."""
    if len(columns) != len(entering):
        raise WireError(f"a step comes with {len(columns)} buffers, and the stage reads {entering}")
    for buffer, data in zip(entering, columns, strict=True):
        if len(data) != tokens * buffer.row_bytes:
            raise WireError(
                f"{buffer.name} of {tokens} tokens comes with {len(data)} bytes, and takes "
                f"{tokens * buffer.row_bytes}"
            )
    arrays = [
        np.frombuffer(data, _dtype(buffer)).reshape(tokens, buffer.cols)
        for buffer, data in zip(entering, columns, strict=True)
    ]
    if not arrays:
        return np.empty((0, 0), np.float32)
    wide = [array.astype(np.float32, copy=False) for array in arrays]
    return wide[0] if len(wide) == 1 else np.concatenate(wide, axis=1)


def _dtype(buffer: Buffer) -> np.dtype[np.generic]:
    assert buffer.element != "int32", "numbers of experts do not leave a stage"
    return np.dtype(NUMPY_DTYPES[buffer.element])
