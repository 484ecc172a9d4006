"""The layout of state slots in the native executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.models.spec import DType
from penstock.plan.state_layers import StateLayer

TILE_COLUMNS = 16
"""Columns of a state that are computed together (``csrc/states.h``)."""

_LINE = 64


@dataclass(frozen=True)
class StateSlots:
    """Slots of ``slot_bytes``, in each of which every layer has a part.

    The columns of a head's matrix are cut into tiles of :data:`TILE_COLUMNS`, the last filled up.
    """

    slot_bytes: int
    layers: tuple[tuple[int, int, int, int, int, int, int, int, int], ...]
    """Nine numbers a layer: the place of its matrices, their number, rows and columns; the place,
    rows and columns of its ring; the place and columns of its log."""

    @classmethod
    def of(cls, state_layers: Sequence[StateLayer], dtype: DType, log: int) -> StateSlots:
        """The layout where convolutions keep ``dtype``, and ``log`` tokens may be taken back."""
        element = 4 if dtype == "float32" else 2
        end = 0
        layers = []

        def place(size: int) -> int:
            nonlocal end
            start, end = end, end + -(-size // _LINE) * _LINE
            return start

        for layer in state_layers:
            columns = -(-layer.columns // TILE_COLUMNS) * TILE_COLUMNS
            ring_rows = layer.ring_rows(log)
            matrices = place(layer.heads * layer.rows * columns * 4)
            ring = place(ring_rows * layer.channels * element)
            logged = place(log * layer.log_size * 4)
            layers.append(
                (
                    *(matrices, layer.heads, layer.rows, layer.columns),
                    *(ring, ring_rows, layer.channels),
                    *(logged, layer.log_size),
                )
            )
        return cls(end, tuple(layers))
