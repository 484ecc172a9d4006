"""Plans the stage that an engine asks for, and makes sure that it is the engine's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.artifact.session import Keeping, Note
from penstock.backends.registry import backend
from penstock.engine.engine_plan import EnginePlan, step_limits
from penstock.engine.loader import open_model, plan_engine
from penstock.engine.stages.identity import StageIdentity
from penstock.engine.stages.loading import load_stage
from penstock.engine.stages.options import StageOptions
from penstock.engine.stages.wire import JoinPipeline
from penstock.errors import ConfigError
from penstock.hardware import detect
from penstock.interface.executor import Executor, Limits
from penstock.interface.loading import no_progress
from penstock.plan.stages import Stage
from penstock.plan.weight_bytes import weight_bytes
from penstock.threads import among, choose_threads
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays

_ENOUGH: Final = 1 << 62
"""Bytes of memory that a stage's plan is made for: the engine has decided how much of it there
is."""


@dataclass(frozen=True)
class PlannedStage:
    """A stage that is known to be the one that the engine takes it for."""

    engine_plan: EnginePlan
    """That of the stage alone."""
    files: ModelFiles
    threads: int
    """The compute threads of all of the engine's processes on this machine."""
    keeping: Keeping

    def load(self, measure: Callable[[], MeasuredArrays | None], note: Note) -> Executor:
        """Read and pack its weights, on all of its ranks. Parameters and errors are those of
        ``load_stage``."""
        return load_stage(
            self.engine_plan,
            measure,
            lambda phase: None,
            note,
            self.keeping,
            self.files,
            no_progress,
            self.threads,
        )


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
            profile=None,
            threads=None,
        )
    files = open_model(asked)
    enough = replace(hardware, memory_available=_ENOUGH)
    made = plan_engine(asked, files, as_built=False, hardware=enough, taps=join.taps)
    config = msgspec.structs.replace(
        join.resolved,
        model_path=made.config.model_path,
        tokenizer_path=made.config.tokenizer_path,
        target_path=None,
    )
    made = made.resolved_as(config)
    if not 0 <= join.stage < len(made.stages) - 1:
        raise ConfigError(f"there is no stage {join.stage} of {len(made.stages)} to load")
    stage = made.stages[join.stage]
    own = StageIdentity.of(made, files, join.stage, near=options is None)
    if differences := own.differences(join.identity):
        raise ConfigError(
            f"it has another model than the engine, since {' and '.join(differences)} differ; "
            "start both with the same model and version"
        )
    if options is None:
        planned = made.of_stage(join.stage, join.threads, join.cpus)
        return PlannedStage(planned, files, config.threads, join.keeping)
    binds = options.backend or config.backend
    chosen = backend(binds)
    chosen.asked(hardware)
    world = config.tensor_parallel
    if not chosen.runs_stages or (world > 1 and not chosen.runs_ranks):
        raise ConfigError(f"the {binds} backend does not run stages yet; choose --backend cpu")
    for plan in stage.parts:
        chosen.check_runnable(plan)
    threads = among(choose_threads(options.threads, hardware), world, hardware, "ranks")
    planned = made.of_stage(join.stage, threads.count, threads.cpus)
    own_dir = options.artifact_dir if config.artifact_dir and chosen.keeps_weights else None
    decided = msgspec.structs.replace(planned.config, backend=binds, artifact_dir=own_dir)
    planned = replace(planned, config=decided)
    _check_memory(stage, step_limits(planned), hardware.memory_available)
    return PlannedStage(planned, files, threads.count, join.keeping)


def _check_memory(stage: Stage, limits: Limits, available: int) -> None:
    """Raise ConfigError where a stage does not fit into the memory of its host."""
    weights = sum(map(weight_bytes, stage.parts))
    cache = sum(
        limits.num_blocks * plan.kv_groups.page_bytes
        + limits.num_states * plan.state_bytes(limits.state_log)
        for plan in stage.parts
    )
    if weights + cache > available:
        raise ConfigError(
            f"its weights take {weights / 2**30:.1f} GiB and its KV cache {cache / 2**30:.1f} GiB, "
            f"and {available / 2**30:.1f} GiB are free on its host; lower kv_cache_bytes, or take "
            "more stages"
        )
