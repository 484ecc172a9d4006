"""Loads the part of a model that a stage has, and starts the stages of a pipeline."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.artifact.session import Note
from penstock.backends.registry import backend
from penstock.config import ChosenBackend
from penstock.engine.engine_plan import EnginePlan, stage_limits, step_limits
from penstock.engine.plan_weights import Mark, calibrated, open_plan_weights
from penstock.engine.ranks.wire import Measured
from penstock.engine.stages.executor import StagedExecutor
from penstock.engine.stages.handshake import is_own_address, read_secret
from penstock.engine.stages.identity import StageIdentity
from penstock.engine.stages.links import StageLinks
from penstock.engine.stages.places import FarStage, NearStage
from penstock.engine.stages.wire import JoinPipeline
from penstock.errors import ConfigError
from penstock.interface.executor import Executor, Limits
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.plan.stages import Stage
from penstock.plan.weight_bytes import weight_bytes
from penstock.resolve.stages import split_address
from penstock.weights.counted import CountedWeights
from penstock.weights.measured import MeasuredWeights
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays


def load_stages(
    engine_plan: EnginePlan,
    mark: Mark,
    note: Note,
    files: ModelFiles | None,
    progress: ProgressCallback,
) -> StagedExecutor:
    """Start or find all stages but the last, load that meanwhile, and return the executor of all.
    Parameters are those of ``loader.load``.

    Raises what loading does, on any stage, and EngineDeadError where one ends; then no child stays.
    """
    config = engine_plan.config
    files = files or ModelFiles.open(Path(config.model_path))
    links = StageLinks(_stages(engine_plan))
    own: Executor | None = None
    try:
        links.start([_join(engine_plan, files, number) for number in range(len(links.stages))])
        mark("start stages")
        measured = _as_message(calibrated(engine_plan, files, mark, progress))
        links.tell(measured)
        stage = engine_plan.stages[-1]
        limits = stage_limits(engine_plan, stage.number)
        own, odd = load_stage(engine_plan, stage, measured, limits, files, progress=progress)
        mark("pack weights")
        if odd is not None:
            note(logging.WARNING, f"{config.model_path}: {odd}")
        links.wait_loaded()
        mark("wait for stages")
        return StagedExecutor(own, stage, links)
    except BaseException:
        links.close()
        if own is not None:
            own.close()
        raise


def _stages(engine_plan: EnginePlan) -> list[NearStage | FarStage]:
    """All stages but the last. Raises ConfigError where one on another host lacks a secret."""
    addresses = engine_plan.config.pipeline_stages
    secret = read_secret(engine_plan.asked.pipeline_secret_file) if addresses else None
    for address in addresses:
        host, _ = split_address(address)
        if secret is None and not is_own_address(host):
            raise ConfigError(
                f"{address} is on another host, and stages there need a secret; give the same to "
                "both, by pipeline_secret_file or PENSTOCK_PIPELINE_SECRET"
            )
    far: list[NearStage | FarStage] = [FarStage(address, secret) for address in addresses]
    return far + [NearStage() for _ in engine_plan.stages[len(far) : -1]]


def _join(engine_plan: EnginePlan, files: ModelFiles, number: int) -> JoinPipeline:
    config, asked = engine_plan.config, engine_plan.asked
    near = number >= len(config.pipeline_stages)
    limits = stage_limits(engine_plan, number) if near else step_limits(engine_plan)
    asked = msgspec.structs.replace(
        asked,
        # The path, so that no stage looks for the model again; those on other hosts have their own.
        model=config.model_path if near else "",
        revision=None,
        tokenizer=config.tokenizer_path if near and asked.tokenizer else None,
        backend=config.backend,
        threads=config.threads if near else None,
        pipeline_parallel=config.pipeline_parallel,
        pipeline_stages=None,
        pipeline_secret_file=None,
        profile=None,
        artifact_dir=None,
    )
    identity = StageIdentity.of(engine_plan, files, number, near=near)
    return JoinPipeline(asked, config, identity, number, limits.threads, limits.cpus)


def load_stage(
    engine_plan: EnginePlan,
    stage: Stage,
    measured: Measured,
    limits: Limits,
    files: ModelFiles | None = None,
    binds: ChosenBackend | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[Executor, str | None]:
    """Return the executor of a stage, and what is odd in the weights that it has read. ``binds``:
    the backend, if it is not the engine's. Raises WeightError or ConfigError."""
    plan = stage.plan
    inputs = {name: np.frombuffer(data, np.float64) for name, data in measured.inputs.items()}
    # All of the model's, of which a stage reads its own: the checkpoint is looked at as a whole.
    weights, warning = open_plan_weights(engine_plan, files, inputs)
    if progress is not no_progress:
        num_bytes = weight_bytes(plan)
        weights = CountedWeights(
            weights, plan.weights, lambda part: progress("weights", part, num_bytes)
        )
    if plan.key_columns:
        # They are numbered by the cached layers, which a stage counts from its own first.
        names = {
            each.name: replace(each, layer=each.layer + stage.kv_first).name
            for each in plan.key_columns
        }
        keys = {
            own: np.frombuffer(measured.keys[whole], np.float32).reshape(2, -1)
            for own, whole in names.items()
        }
        weights = MeasuredWeights(weights, keys)
    executor = backend(binds or engine_plan.config.backend).bind(plan, weights, limits)
    return executor, warning()


def _as_message(measured: MeasuredArrays | None) -> Measured:
    if measured is None:
        return Measured({}, {})
    return Measured(
        {name: array.tobytes() for name, array in measured.inputs.items()},
        {name: array.tobytes() for name, array in measured.keys.items()},
    )
