"""The messages between rank 0 and the processes of other ranks, one in each frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

import penstock.errors as errors
from penstock.artifact.session import Keeping
from penstock.config import EngineConfig
from penstock.engine.ranks.identity import RankIdentity
from penstock.engine.ranks.steps import StepFrame
from penstock.errors import EngineDeadError, PenstockError
from penstock.resolved_config import ResolvedConfig

if TYPE_CHECKING:
    from penstock.engine.calibration import Measured as MeasuredArrays

MAX_FRAME_BYTES: Final = 1 << 30
"""Maximum size of one frame. Measured columns of a large model take a few MB, a step much less."""


class JoinGroup(msgspec.Struct, tag="join", frozen=True):
    """The first message to a new process: what to load."""

    asked: EngineConfig
    resolved: ResolvedConfig
    identity: RankIdentity
    """What rank 0 takes the rank's part of the model to be."""
    taps: tuple[int, ...]
    """The layers whose inputs go to a head that drafts, of rank 0."""
    rank: int
    segment: int
    """The inherited file descriptor of the shared memory (``interface/rank_segment.py``)."""
    slot_bytes: int
    columns: int
    """That of the socket to rank 0 by which columns go where no memory is shared."""
    stage: int | None
    """The stage of a pipeline that the ranks share; None: the whole model."""
    threads: int
    """The compute threads of all of the engine's processes on this machine."""
    keeping: Keeping
    """Whether packed weights are kept (``loader.load``)."""


class Measured(msgspec.Struct, tag="measured", frozen=True):
    """What a text says of the model (``engine/calibration.py``), as rank 0 has measured it: bytes
    of float64 arrays by name, and of float32 ones."""

    inputs: dict[str, bytes]
    keys: dict[str, bytes]

    @classmethod
    def of(cls, arrays: MeasuredArrays | None) -> Measured:
        """Return the message of what was measured, if anything was."""
        if arrays is None:
            return cls({}, {})
        return cls(
            {name: array.tobytes() for name, array in arrays.inputs.items()},
            {name: array.tobytes() for name, array in arrays.keys.items()},
        )

    def arrays(self) -> MeasuredArrays | None:
        """Return what was measured, if anything was."""
        from penstock.engine.calibration import Measured as Arrays  # needed at first starts alone

        if not self.inputs and not self.keys:
            return None
        return Arrays(
            {name: np.frombuffer(data, np.float64) for name, data in self.inputs.items()},
            {name: np.frombuffer(data, np.float32) for name, data in self.keys.items()},
        )


class Looked(msgspec.Struct, tag="looked", frozen=True):
    """The rank has looked for an engine artifact of its part."""

    packs: bool
    """Whether there is none to restore, so that it needs what a text says of the model."""


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """The rank is ready for steps."""

    notes: list[tuple[int, str]]
    """Lines about its engine artifact and its weights, with their levels as in logging."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A rank or a stage ends, because of an error of this class and text."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: PenstockError) -> Failed:
        """Return what tells an error."""
        return cls(type(error).__name__, str(error))

    def error(self, whose: str = "") -> PenstockError:
        """Return the error, of the class it had there if that is one of penstock.errors, which says
        ``whose`` it is."""
        return named(getattr(errors, self.kind, EngineDeadError), self.message, whose)


def named(kind: object, message: str, whose: str) -> PenstockError:
    """Return an error of a class, if that is one of penstock.errors, which says ``whose`` it is."""
    text = f"{whose}: {message}" if whose else message
    if (
        isinstance(kind, type)
        and issubclass(kind, PenstockError)
        and hasattr(errors, kind.__name__)
    ):
        return kind(text)
    return EngineDeadError(text)


ToRank = JoinGroup | Measured | StepFrame
FromRank = Looked | Loaded | Failed
