"""Opens the weights of an engine's plan, and has the model read a text where they are scaled by
what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backends.registry import backend
from penstock.engine.engine_plan import EnginePlan
from penstock.interface.loading import ProgressCallback
from penstock.interface.weights import WeightSource
from penstock.plan.observation import inputs
from penstock.weights.model_files import ModelFiles
from penstock.weights.smoothing import F64

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured

Mark = Callable[[str], None]
"""Callback that receives the name of each phase of the start as it ends."""


def open_plan_weights(
    engine_plan: EnginePlan, files: ModelFiles | None, measured: Mapping[str, F64]
) -> tuple[WeightSource, Callable[[], str | None]]:
    """Open the weights of a plan; also returns what says what is odd in those that have been read.

    ``measured``: the squared norms of the columns of inputs, which ``Balance.input`` names. Raises
    WeightError.
    """
    # Readers of all formats, of which a start that restores an artifact needs none.
    from penstock.weights.checked import CheckedWeights
    from penstock.weights.checkpoint import CheckpointWeights, open_weights

    config, spec, weights = engine_plan.config, engine_plan.spec, engine_plan.plan.weights
    opened = open_weights(
        files or Path(config.model_path),
        spec,
        weights,
        dtype=config.dtype,
        load_format=config.load_format,
        seed=config.seed,
        target=None if config.target_path is None else Path(config.target_path),
        measured=measured,
    )
    if not isinstance(opened, CheckpointWeights):
        return opened, lambda: None
    checked = CheckedWeights(opened)
    return checked, checked.warning


def calibrated(
    engine_plan: EnginePlan, files: ModelFiles | None, mark: Mark, progress: ProgressCallback
) -> Measured | None:
    """Measure what a text says of the model, where the plan asks for it. Raises what
    :func:`~penstock.engine.calibration.calibrate` does."""
    config, plan = engine_plan.config, engine_plan.plan
    if not inputs(plan) and not plan.key_columns:
        return None
    from penstock.engine.calibration import calibrate  # needed at a first start alone

    bind = backend("cpu").bind
    measured = calibrate(config, plan, bind, files, lambda part: progress("calibrating", part, 0))
    mark("calibrate")
    return measured
