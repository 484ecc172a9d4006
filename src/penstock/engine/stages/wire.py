"""The messages between an engine and the stages of its pipeline, and between these, one in each
frame (``peers/channel.py``)."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.artifact.session import Keeping
from penstock.config import EngineConfig
from penstock.engine.ranks.steps import StepFrame
from penstock.engine.ranks.wire import Failed, Measured
from penstock.engine.stages.identity import StageIdentity
from penstock.interface.executor import OpTime
from penstock.peers.address import Address
from penstock.peers.channel import Inbound
from penstock.peers.handshake import Party
from penstock.peers.secret import SecretOption
from penstock.resolved_config import ResolvedConfig

BEAT_S: Final = 2.0
"""Seconds between a stage's signs of life."""
SILENCE_S: Final = 60.0
"""Seconds after which a peer that is to send something, if only signs of life, is given up."""
MESSAGE_BYTES: Final = 1 << 28
"""Most bytes of a message: of a large model, measured columns take tens of MB."""
PAYLOAD_BYTES: Final = 1 << 31
"""Most bytes that a stage hands on: of 8,192 tokens 256 MiB at 8,192 columns."""

SECRET: Final = SecretOption("--pipeline-secret-file", "PENSTOCK_PIPELINE_SECRET")


class JoinPipeline(msgspec.Struct, tag="join-pipeline", frozen=True):
    """The first message of an engine: what to load."""

    asked: EngineConfig
    resolved: ResolvedConfig
    identity: StageIdentity
    """What the engine takes the stage's part of the model to be."""
    taps: tuple[int, ...]
    """The layers whose inputs go to a head that drafts, on the engine's host."""
    stage: int
    threads: int
    """Compute threads of a stage that is a child of the engine; others have their own option."""
    cpus: tuple[int, ...]
    keeping: Keeping
    """Whether packed weights are kept (``loader.load``)."""
    session: bytes
    """Names this pipeline, to the stages of other hosts."""
    next: Address | None
    """Where the next stage waits, if it is on another host: what is handed on goes there if it can,
    and through the engine's host if not."""


class FeedStage(msgspec.Struct, tag="feed-stage", frozen=True):
    """The first message of the stage before ``stage``: from now on it hands on directly."""

    session: bytes
    stage: int


class Fed(msgspec.Struct, tag="fed", frozen=True):
    """The answer to :class:`FeedStage`."""


class Rows(msgspec.Struct, tag="rows", frozen=True):
    """The stage before hands on the payload, of the step of this number."""

    number: int


class StageStep(msgspec.Struct, tag="stage-step", frozen=True):
    """A step. What the stage before hands on, for each buffer that enters an array
    ``[tokens, columns]`` in its own element type, is the payload, or comes as :class:`Rows`."""

    number: int
    step: StepFrame
    is_fed: bool
    """Whether it comes as ``Rows``."""
    is_timed: bool = False
    """Whether it is wanted what each op takes."""


class AskMeasured(msgspec.Struct, tag="ask-measured", frozen=True):
    """The stage packs its weights, and waits for what a text says of the model."""


class StageLoaded(msgspec.Struct, tag="stage-loaded", frozen=True):
    """The stage is ready for steps."""

    notes: list[tuple[int, str]]
    """Lines about its weights, with their levels as in logging."""
    feeds: bool
    """Whether it hands on to the next stage directly."""


class StageResult(msgspec.Struct, tag="stage-result", frozen=True):
    """A stage has run the step of this number. The payload is what it hands on, unless it feeds the
    next stage."""

    number: int
    ops: list[OpTime] = []
    """What the ops of its plan took, of several ranks those of rank 0, if that was wanted."""


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """The stage's process runs, if only to load or to compute."""


ToStage = JoinPipeline | Measured | StageStep | FeedStage | Rows
FromStage = AskMeasured | StageLoaded | Failed | StageResult | Alive | Fed

TO_STAGE: Final = Inbound(ToStage, MESSAGE_BYTES, PAYLOAD_BYTES)
FROM_STAGE: Final = Inbound(FromStage, MESSAGE_BYTES, PAYLOAD_BYTES)


def engine_party(secret: bytes) -> Party:
    """Who connects to a stage: an engine, or for it the stage before."""
    return Party("engine", "stage", SECRET, secret)


def stage_party(secret: bytes) -> Party:
    return Party("stage", "engine", SECRET, secret)
