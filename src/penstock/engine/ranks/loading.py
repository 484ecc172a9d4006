"""Loads the part of a model that a rank has, and starts the ranks that share one."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.artifact.session import Note
from penstock.backends.registry import backend
from penstock.engine.engine_plan import EnginePlan, rank_limits, step_limits
from penstock.engine.plan_weights import Mark, calibrated, open_plan_weights
from penstock.engine.ranks.executor import RankedExecutor
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.processes import RankProcesses
from penstock.engine.ranks.wire import JoinGroup, Measured
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.interface.rank_segment import RankSegment
from penstock.plan.gathers import slot_bytes
from penstock.plan.ranks import own_key_columns
from penstock.plan.weight_bytes import weight_bytes
from penstock.weights.counted import CountedWeights
from penstock.weights.measured import MeasuredWeights
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays


def load_ranks(
    engine_plan: EnginePlan,
    mark: Mark,
    note: Note,
    files: ModelFiles | None,
    progress: ProgressCallback,
) -> RankedExecutor:
    """Start the processes of all ranks but the first, load this one's part meanwhile, and return
    the executor of all. Parameters are those of ``loader.load``.

    Raises what loading does, on any rank, and EngineDeadError where a process ends; then none of
    them stays.
    """
    config, world = engine_plan.config, engine_plan.config.tensor_parallel
    files = files or ModelFiles.open(Path(config.model_path))
    limits = step_limits(engine_plan)
    slots = slot_bytes(engine_plan.ranks[0], limits.max_tokens, limits.max_selected_rows)
    processes = RankProcesses(RankSegment(world, slots), world)
    own: Executor | None = None
    try:
        # The path, so that no rank looks for the model again.
        asked = msgspec.structs.replace(
            engine_plan.asked,
            model=config.model_path,
            revision=None,
            tokenizer=config.tokenizer_path if engine_plan.asked.tokenizer else None,
        )

        def join(rank: int, columns: int) -> JoinGroup:
            identity = RankIdentity.of(engine_plan, files, rank)
            segment = processes.segment
            return JoinGroup(asked, config, identity, rank, segment.fd, segment.slot_bytes, columns)

        processes.start(join)
        mark("start ranks")
        measured = calibrated(engine_plan, files, mark, progress)
        processes.send(_as_message(measured))
        seat = RankSeat(processes.collective, processes.segment.fd, slots, config.threads)
        own, odd = load_rank(engine_plan, seat, _as_message(measured), files, progress)
        mark("pack weights")
        if odd is not None:
            note(logging.WARNING, f"{config.model_path}: {odd}")
        processes.wait_loaded()
        mark("wait for ranks")
        return RankedExecutor(own, processes)
    except BaseException:
        processes.close()
        if own is not None:
            own.close()
        raise


def load_rank(
    engine_plan: EnginePlan,
    seat: RankSeat,
    measured: Measured,
    files: ModelFiles | None = None,
    progress: ProgressCallback = no_progress,
) -> tuple[Executor, str | None]:
    """Return the executor of the rank in ``seat``, and what is odd in the weights that it has read.

    Raises WeightError or ConfigError.
    """
    config, rank = engine_plan.config, seat.collective.rank
    plan = engine_plan.ranks[rank]
    inputs = {name: np.frombuffer(data, np.float64) for name, data in measured.inputs.items()}
    weights, warning = open_plan_weights(replace(engine_plan, plan=plan), files, inputs)
    if progress is not no_progress:
        num_bytes = weight_bytes(plan)
        weights = CountedWeights(
            weights, plan.weights, lambda part: progress("weights", part, num_bytes)
        )
    if measured.keys:
        keys = {
            each.name: own_key_columns(
                engine_plan.plan,
                each,
                np.frombuffer(measured.keys[each.name], np.float32),
                rank,
                config.tensor_parallel,
            )
            for each in engine_plan.plan.key_columns
        }
        weights = MeasuredWeights(weights, keys)
    limits = rank_limits(engine_plan, rank)
    executor = backend(config.backend).bind(plan, weights, limits, seat)
    return executor, warning()


def _as_message(measured: MeasuredArrays | None) -> Measured:
    if measured is None:
        return Measured({}, {})
    return Measured(
        {name: array.tobytes() for name, array in measured.inputs.items()},
        {name: array.tobytes() for name, array in measured.keys.items()},
    )
