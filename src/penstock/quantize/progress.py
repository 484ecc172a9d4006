"""How far a run through a model's layers is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    layer: int
    """The layer that is worked on, from 0."""
    layers: int
    part: float
    """How much of the layer is done, from 0 to 1, about."""
    doing: str
    phase: str = "quantizing"
    """What all layers are gone through for."""
    unit: str = "layer"
    """What is counted; layers, where it is nothing else."""


Tell = Callable[[Progress], None]
