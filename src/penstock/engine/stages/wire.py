"""The messages between an engine and the stages of its pipeline, one in each frame."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.config import EngineConfig, ResolvedConfig
from penstock.engine.ranks.steps import StepFrame
from penstock.engine.ranks.wire import Failed, Loaded, Measured
from penstock.engine.stages.identity import StageIdentity

BEAT_S: Final = 2.0
"""Seconds between a stage's signs of life."""
SILENCE_S: Final = 60.0
"""Seconds after which a peer that is to send something, if only signs of life, is given up."""


class JoinPipeline(msgspec.Struct, tag="join-pipeline", frozen=True):
    """The first message of an engine: what to load."""

    asked: EngineConfig
    resolved: ResolvedConfig
    identity: StageIdentity
    """What the engine takes the stage's part of the model to be."""
    stage: int
    threads: int
    """Compute threads of a stage that is a child of the engine; others have their own option."""
    cpus: tuple[int, ...]


class StageStep(msgspec.Struct, tag="stage-step", frozen=True):
    """A step, and what the stage before hands on: bytes of an array ``[tokens, columns]`` for each
    buffer that enters, in its own element type."""

    number: int
    step: StepFrame
    columns: list[bytes]


class StageResult(msgspec.Struct, tag="stage-result", frozen=True):
    """What a stage hands on of the step of this number."""

    number: int
    columns: list[bytes]


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """The stage's process runs, if only to load or to compute."""


ToStage = JoinPipeline | Measured | StageStep
FromStage = Loaded | Failed | StageResult | Alive
