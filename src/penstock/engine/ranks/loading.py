"""Starts the ranks that share a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.artifact.session import Keeping, Note
from penstock.engine.engine_plan import EnginePlan, step_limits
from penstock.engine.plan_weights import Mark
from penstock.engine.ranks.executor import ranked
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.processes import PATIENCE_S, RankProcesses
from penstock.engine.ranks.wire import JoinGroup, Measured
from penstock.engine.start import Start, environment_of_rank
from penstock.errors import EngineDeadError
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
    measure: Callable[[], MeasuredArrays | None],
    mark: Mark,
    note: Note,
    keeping: Keeping,
    files: ModelFiles | None,
    progress: ProgressCallback,
    threads: int,
) -> Executor:
    """Start the processes of all ranks but the first, load this one's part meanwhile, and return
    the executor of all. Parameters are those of ``loader.load``.

    Each rank restores its part from an engine artifact of its own, or packs and keeps it.
    ``measure`` returns what a text says of the model, and is called if any rank packs; ``threads``
    are the compute threads of all of the engine's processes on this machine. Raises what loading
    does, on any rank, and EngineDeadError where a process ends; then none of them stays.
    """
    config, world = engine_plan.config, engine_plan.config.tensor_parallel
    files = files or ModelFiles.open(Path(config.model_path))
    limits = step_limits(engine_plan)
    slots = slot_bytes(engine_plan.ranks[0], limits.max_tokens, limits.max_selected_rows)
    processes = RankProcesses(
        RankSegment(world, slots), world, environment=partial(environment_of_rank, engine_plan)
    )
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
                engine_plan.taps,
                rank,
                segment.fd,
                segment.slot_bytes,
                columns,
                None if engine_plan.stage is None else engine_plan.stage.number,
                threads,
                keeping,
            )

        processes.start(join)
        mark("start ranks")
        seat = RankSeat(processes.collective, processes.segment.fd, slots, threads)
        start = Start(engine_plan, files, mark, note, keeping, progress, seat)
        own = start.restored()
        began = time.monotonic()
        if own is None:
            start.require_room()
        packs = own is None or processes.wait_looked()
        measured = measure() if packs else None
        processes.send(Measured.of(measured))
        if own is None:
            own = start.packed(measured, began)
        for rank, level, text in processes.wait_loaded():
            note(level, f"rank {rank}: {text}")
        mark("wait for ranks")
        return ranked(own, processes)
    except BaseException as error:
        failure = None
        if isinstance(error, RuntimeError | EngineDeadError):  # as it waited for another rank
            failure = processes.failure(PATIENCE_S)
        processes.close()
        if own is not None:
            own.close()
        if failure is not None and failure is not error:
            raise failure from error
        raise
