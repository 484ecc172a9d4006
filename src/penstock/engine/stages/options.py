"""The options of a stage that waits for engines."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.resolved_config import ChosenBackend


@dataclass(frozen=True)
class StageOptions:
    """The options of a stage that waits for engines: where its part of the model comes from, and
    what computes."""

    model: str
    """The model as its user names it; an engine's own options say all else of it."""
    revision: str | None
    backend: ChosenBackend | None
    """None: the engine's."""
    threads: int | str | None
    artifact_dir: str | None
    """The folder of engine artifacts; None where none are kept."""
    secret: bytes
    """That of its engines; empty if there is none."""
