"""Plans the stage that an engine asks for, and makes sure that it is the engine's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.backends.registry import backend
from penstock.config import ChosenBackend
from penstock.engine.engine_plan import EnginePlan, step_limits
from penstock.engine.loader import open_model, plan_engine
from penstock.engine.ranks.wire import Measured
from penstock.engine.stages.identity import StageIdentity
from penstock.engine.stages.loading import load_stage
from penstock.engine.stages.options import StageOptions
from penstock.engine.stages.wire import JoinPipeline
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.interface.executor import Executor, Limits
from penstock.plan.stages import Stage
from penstock.plan.weight_bytes import weight_bytes
from penstock.threads import choose_threads
from penstock.weights.model_files import ModelFiles

_ENOUGH: Final = 1 << 62
"""Bytes of memory that a stage's plan is made for: the engine has decided how much of it there
is."""


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
