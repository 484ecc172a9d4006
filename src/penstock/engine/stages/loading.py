"""Loads the part of a model that a stage has, and starts the stages of a pipeline."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
from penstock.engine.stages.serving import StageOptions
from penstock.engine.stages.wire import JoinPipeline
from penstock.errors import ConfigError
from penstock.interface.executor import Executor, Limits
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.plan.stages import Stage
from penstock.plan.weight_bytes import weight_bytes
from penstock.resolve.stages import split_address
from penstock.threads import choose_threads
from penstock.weights.counted import CountedWeights
from penstock.weights.measured import MeasuredWeights
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays

_ENOUGH: Final = 1 << 62
"""Bytes of memory that a stage's plan is made for: the engine has decided how much of it there
is."""


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


@dataclass(frozen=True)
class PlannedStage:
    """A stage that is known to be the one that the engine takes it for."""

    engine_plan: EnginePlan
    stage: Stage
    limits: Limits
    files: ModelFiles
    binds: ChosenBackend

    def load(self, measured: Measured) -> tuple[Executor, Stage]:
        """Read and pack its weights. Raises WeightError or ConfigError."""
        executor, _ = load_stage(
            self.engine_plan, self.stage, measured, self.limits, self.files, self.binds
        )
        return executor, self.stage


def plan_stage(join: JoinPipeline, options: StageOptions | None) -> PlannedStage:
    """Plan what an engine asks a stage to load; ``options`` are those of one that is no child of
    the engine. Raises ConfigError where it is another model than the engine's."""
    from penstock.engine.loader import open_model, plan_engine
    from penstock.hardware import detect

    asked, hardware = join.asked, detect()
    if options is not None:
        # Nothing but the stage's own model is looked for here, whatever an engine names.
        asked = msgspec.structs.replace(
            asked,
            model=options.model,
            revision=options.revision,
            tokenizer=None,
            speculative=None,
            profile=None,
            threads=None,
        )
    files = open_model(asked)
    made = plan_engine(asked, files, hardware=replace(hardware, memory_available=_ENOUGH))
    length = join.resolved.max_model_len
    stages = tuple(
        replace(each, plan=replace(each.plan, max_positions=length)) for each in made.stages
    )
    if not 0 <= join.stage < len(stages) - 1:
        raise ConfigError(f"there is no stage {join.stage} of {len(stages)} to load")
    resolved = msgspec.structs.replace(join.resolved, target_path=None)
    made = replace(made, config=resolved, stages=stages)
    own = StageIdentity.of(made, files, join.stage, near=options is None)
    if differences := own.differences(join.identity):
        raise ConfigError(
            f"it has another model than the engine, since {' and '.join(differences)} differ; "
            "start both with the same model and version"
        )
    stage, binds = stages[join.stage], join.resolved.backend
    limits = replace(step_limits(made), threads=join.threads, cpus=join.cpus)
    if options is not None:
        binds = options.backend or binds
        chosen = backend(binds)
        chosen.asked(hardware)
        if not chosen.runs_stages:
            raise ConfigError(f"the {binds} backend does not run stages yet; choose --backend cpu")
        chosen.check_runnable(stage.plan)
        threads = choose_threads(options.threads, hardware)
        limits = replace(limits, threads=threads.count, cpus=threads.cpus)
        _check_memory(stage, limits, hardware.memory_available)
    return PlannedStage(made, stage, limits, files, binds)


def _check_memory(stage: Stage, limits: Limits, available: int) -> None:
    """Raise ConfigError where a stage does not fit into the memory of its host."""
    weights = weight_bytes(stage.plan)
    cache = limits.num_blocks * stage.plan.kv_groups.page_bytes
    cache += limits.num_states * stage.plan.state_bytes(limits.state_log)
    if weights + cache > available:
        raise ConfigError(
            f"its weights take {weights / 2**30:.1f} GiB and its KV cache {cache / 2**30:.1f} GiB, "
            f"and {available / 2**30:.1f} GiB are free on its host; lower kv_cache_bytes, or take "
            "more stages"
        )


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
