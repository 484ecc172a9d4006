"""Loads the part of a model that a stage has, and starts the stages of a pipeline."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.artifact.session import Keeping, Note
from penstock.engine.engine_plan import EnginePlan, stage_threads
from penstock.engine.plan_weights import Mark
from penstock.engine.ranks.loading import load_ranks
from penstock.engine.ranks.wire import Measured
from penstock.engine.stages.executor import StagedExecutor, staged
from penstock.engine.stages.identity import StageIdentity
from penstock.engine.stages.links import StageLinks
from penstock.engine.stages.places import FarStage, NearStage
from penstock.engine.stages.wire import SECRET, JoinPipeline
from penstock.engine.start import Start
from penstock.interface.executor import Executor
from penstock.interface.loading import ProgressCallback
from penstock.peers.address import Address
from penstock.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays


def load_stages(
    engine_plan: EnginePlan,
    measure: Callable[[], MeasuredArrays | None],
    mark: Mark,
    note: Note,
    keeping: Keeping,
    files: ModelFiles | None,
    progress: ProgressCallback,
) -> StagedExecutor:
    """Start or find all stages but the last, load that meanwhile, and return the executor of all.
    Parameters are those of ``loader.load`` and ``load_ranks``.

    Each stage restores its part from an engine artifact of its own, on its host, or packs and keeps
    it. ``measure`` is called if any of them packs, and all of these are told. Raises what loading
    does, on any stage, and EngineDeadError where one ends; then no child stays.
    """
    config = engine_plan.config
    files = files or ModelFiles.open(Path(config.model_path))
    links, session = StageLinks(_stages(engine_plan)), secrets.token_bytes(16)
    own: Executor | None = None
    try:
        numbers = range(len(links.stages))
        links.start([_join(engine_plan, files, number, session, keeping) for number in numbers])
        mark("start stages")

        @cache
        def tell() -> MeasuredArrays | None:
            found = measure()
            links.tell(Measured.of(found))
            return found

        last = engine_plan.of_engine
        own = load_stage(last, tell, mark, note, keeping, files, progress, config.threads)
        if links.wait_asked():
            tell()
        for stage, level, text in links.wait_loaded():
            note(level, f"stage {stage}: {text}")
        mark("wait for stages")
        verifies = config.speculative is not None
        return staged(own, engine_plan.stages[-1], links, verifies=verifies)
    except BaseException:
        links.close()
        if own is not None:
            own.close()
        raise


def load_stage(
    engine_plan: EnginePlan,
    measure: Callable[[], MeasuredArrays | None],
    mark: Mark,
    note: Note,
    keeping: Keeping,
    files: ModelFiles,
    progress: ProgressCallback,
    threads: int,
) -> Executor:
    """Return the executor of the stage that ``engine_plan`` is of, which its ranks share where
    there are several. Parameters and errors are those of ``load_ranks``."""
    if engine_plan.ranks:
        return load_ranks(engine_plan, measure, mark, note, keeping, files, progress, threads)
    return Start(engine_plan, files, mark, note, keeping, progress).executor(measure)


def _stages(engine_plan: EnginePlan) -> list[NearStage | FarStage]:
    """All stages but the last. Raises ConfigError where one on another host lacks a secret."""
    addresses = list(map(Address.parse, engine_plan.config.pipeline_stages))
    secret = SECRET.read(engine_plan.asked.pipeline_secret_file) if addresses else b""
    SECRET.check(secret, addresses, "pipeline_stages")
    far: list[NearStage | FarStage] = [FarStage(address, secret) for address in addresses]
    return far + [NearStage() for _ in engine_plan.stages[len(far) : -1]]


def _join(
    engine_plan: EnginePlan, files: ModelFiles, number: int, session: bytes, keeping: Keeping
) -> JoinPipeline:
    config, asked = engine_plan.config, engine_plan.asked
    places = config.pipeline_stages
    near = number >= len(places)
    following = Address.parse(places[number + 1]) if number + 1 < len(places) else None
    threads, cpus = stage_threads(engine_plan, number) if near else (0, ())
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
        artifact_dir=None,  # as it was decided, or that of another host
    )
    identity = StageIdentity.of(engine_plan, files, number, near=near)
    return JoinPipeline(
        asked,
        config,
        identity,
        engine_plan.taps,
        number,
        threads,
        cpus,
        keeping,
        session,
        following,
    )
