"""The messages between rank 0 and the processes of other ranks, one in each frame."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.artifact.session import Keeping
from penstock.config import EngineConfig, ResolvedConfig
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.steps import StepFrame

MAX_FRAME_BYTES: Final = 1 << 30
"""Maximum size of one frame. Measured columns of a large model take a few MB, a step much less."""


class JoinGroup(msgspec.Struct, tag="join", frozen=True):
    """The first message to a new process: what to load."""

    asked: EngineConfig
    resolved: ResolvedConfig
    identity: RankIdentity
    """What rank 0 takes the rank's part of the model to be."""
    rank: int
    segment: int
    """The inherited file descriptor of the shared memory (``interface/rank_segment.py``)."""
    slot_bytes: int
    columns: int
    """That of the socket to rank 0 by which columns go where no memory is shared."""
    keeping: Keeping
    """Whether packed weights are kept (``loader.load``)."""


class Measured(msgspec.Struct, tag="measured", frozen=True):
    """What a text says of the model (``engine/calibration.py``), as rank 0 has measured it: bytes
    of float64 arrays by name, and of float32 ones."""

    inputs: dict[str, bytes]
    keys: dict[str, bytes]


class Looked(msgspec.Struct, tag="looked", frozen=True):
    """The rank has looked for an engine artifact of its part."""

    packs: bool
    """Whether there is none to restore, so that it needs what a text says of the model."""


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """The rank is ready for steps."""

    notes: list[tuple[int, str]]
    """Lines about its engine artifact and its weights, with their levels as in logging."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The rank ends, because of an error of this class and text."""

    kind: str
    message: str


ToRank = JoinGroup | Measured | StepFrame
FromRank = Looked | Loaded | Failed
