"""The largest numbers that a configuration may have: far beyond any model's, and computable."""

from __future__ import annotations

from typing import Final

MAX_LAYERS: Final = 4096
MAX_VOCAB: Final = 2**24
MAX_HIDDEN: Final = 2**20
MAX_INTERMEDIATE: Final = 2**24
MAX_HEADS: Final = 2**16
MAX_EXPERTS: Final = 2**16
MAX_HEAD_DIM: Final = 2**14
MAX_HEADS_WIDTH: Final = 2**24
"""Maximum total width of all heads: their number times their dimension."""

MAX_POSITIONS: Final = 2**24
"""Rotation angles are computed from float32 positions, which are exact integers only up to here."""
MAX_THETA: Final = 1e15
MIN_FACTOR: Final = 1e-3
MAX_FACTOR: Final = 1e9
"""Upper bound of every factor."""

MIN_EPS: Final = 1e-20
MAX_EPS: Final = 1.0
"""Upper bound of the epsilon that norms add to mean squares in float32."""
