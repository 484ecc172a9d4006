"""Models that are loaded: who loads them, who uses them, and what they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from penstock.interface.loading import ProgressCallback
from penstock.repository.catalogue import ModelEntry
from penstock.repository.slot import State


class Loaded(Protocol):
    """A model that is loaded."""

    @property
    def takes_bytes(self) -> int:
        """What it takes, or may take, in memory."""
        ...

    async def lost(self) -> None:
        """Return never while it may serve; raise PenstockError once it cannot any more."""
        ...

    async def aclose(self) -> None:
        """End it, and give its memory back."""
        ...


M = TypeVar("M", bound=Loaded)
M_co = TypeVar("M_co", bound=Loaded, covariant=True)


class Loader(Protocol[M_co]):
    """Loads the models of a catalogue. Its methods raise PenstockError or OSError."""

    async def size(self, entry: ModelEntry) -> int:
        """The bytes that a model will take in memory, at most."""
        ...

    async def load(self, entry: ModelEntry, progress: ProgressCallback) -> M_co: ...


class Lease(Generic[M]):
    """The use of a model by one request, to be closed at its end."""

    def __init__(self, model: M, leave: Callable[[], None]) -> None:
        self.model = model
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        """Safe to repeat."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


@dataclass(frozen=True)
class ModelStatus(Generic[M]):
    """One model, at one moment."""

    entry: ModelEntry
    state: State
    model: M | None
    """Where it is loaded."""
    open: int
    waiting: int
    need: int | None
    """Bytes; None before that was found out."""
    phase: str
    """What its loading does now, and how much of that is done; empty unless it is loaded now."""
    failure: str | None
    """Why it could not be loaded last."""
    keep_s: float | None
    idle_s: float
    """Seconds since a request came or left last."""
    loads: int
    unloads: int
    failed_loads: int
