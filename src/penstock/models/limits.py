"""The largest numbers that a configuration may have: far beyond any model's, and computable."""

from __future__ import annotations

from typing import Final

MAX_LAYERS: Final = 4096
MAX_VOCAB: Final = 2**24
MAX_HIDDEN: Final = 2**20
MAX_INTERMEDIATE: Final = 2**24
MAX_HEADS: Final = 2**16
MAX_HEAD_DIM: Final = 2**14
MAX_HEADS_WIDTH: Final = 2**24
"""Components of all heads together."""

MAX_POSITIONS: Final = 2**24
"""Angles are products of positions as float32 numbers, and these do not tell more apart."""
MAX_THETA: Final = 1e15
MIN_FACTOR: Final = 1e-3
MAX_FACTOR: Final = 1e9
"""Of every number that scales rotations or their frequencies."""

MIN_EPS: Final = 1e-20
MAX_EPS: Final = 1.0
"""Added to mean squares in float32."""
