"""Starts the ranks that share a model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.artifact.session import Keeping, Note
from penstock.engine.engine_plan import EnginePlan, step_limits
from penstock.engine.plan_weights import Mark, calibrated
from penstock.engine.ranks.executor import RankedExecutor, ranked
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.processes import RankProcesses
from penstock.engine.ranks.wire import JoinGroup, Measured
from penstock.engine.start import Start
from penstock.interface.collective import RankSeat
from penstock.interface.executor import Executor
from penstock.interface.loading import ProgressCallback
from penstock.interface.rank_segment import RankSegment
from penstock.plan.gathers import slot_bytes
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays


def load_ranks(
    engine_plan: EnginePlan,
    mark: Mark,
    note: Note,
    keeping: Keeping,
    files: ModelFiles | None,
    progress: ProgressCallback,
) -> RankedExecutor:
    """Start the processes of all ranks but the first, load this one's part meanwhile, and return
    the executor of all. Parameters are those of ``loader.load``.

    Each rank restores its part from an engine artifact of its own, or packs and keeps it. What a
    text says of the model is measured by rank 0, if any rank packs. Raises what loading does, on
    any rank, and EngineDeadError where a process ends; then none of them stays.
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
            segment = processes.segment
            return JoinGroup(
                asked,
                config,
                RankIdentity.of(engine_plan, files, rank),
                rank,
                segment.fd,
                segment.slot_bytes,
                columns,
                keeping,
            )

        processes.start(join)
        mark("start ranks")
        seat = RankSeat(processes.collective, processes.segment.fd, slots, config.threads)
        start = Start(engine_plan, files, mark, note, keeping, progress, seat)
        own = start.restored()
        began = time.monotonic()
        if own is None:
            start.require_room()
        packs = own is None or processes.wait_looked()
        measured = calibrated(engine_plan, files, mark, progress) if packs else None
        processes.send(_as_message(measured))
        if own is None:
            own = start.packed(measured, began)
        for rank, level, text in processes.wait_loaded():
            note(level, f"rank {rank}: {text}")
        mark("wait for ranks")
        return ranked(own, processes)
    except BaseException:
        processes.close()
        if own is not None:
            own.close()
        raise


def _as_message(measured: MeasuredArrays | None) -> Measured:
    if measured is None:
        return Measured({}, {})
    return Measured(
        {name: array.tobytes() for name, array in measured.inputs.items()},
        {name: array.tobytes() for name, array in measured.keys.items()},
    )
