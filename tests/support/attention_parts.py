"""Sequences with their whole history, and the parts of them that a step runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class Heads(Protocol):
    """What a sequence's arrays are sized by."""

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class AttentionSequence:
    """The queries, keys and values of every position that a sequence will ever have."""

    q: F32  # [n, heads, D]
    k: F32  # [n, kv_heads, D]
    v: F32


def sequence(shape: Heads, n: int, seed: int) -> AttentionSequence:
    rng = np.random.default_rng(seed)

    def draw(heads: int) -> F32:
        return rng.standard_normal((n, heads, shape.head_dim), dtype=np.float32)

    # Scores of a few units: peaked enough that one wrong key is seen, not so that only one counts.
    return AttentionSequence(2 * draw(shape.heads), draw(shape.kv_heads), draw(shape.kv_heads))


@dataclass(frozen=True)
class Part:
    """Queries ``[start, end)`` of a sequence, as one step runs them."""

    sequence: AttentionSequence
    start: int
    end: int
