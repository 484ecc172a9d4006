"""Centers and factors of cached keys (``plan/key_columns.py`` says what they are for)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_LEAST: Final = 1e-3
"""The least size of a component, of the mean size: one that is 0 in a text has a finite factor."""
_STEPS_PER_OCTAVE: Final = 8
"""Factors of an octave. Sizes may differ in their last bits from machine to machine, and the
factors do not."""


@dataclass(frozen=True)
class Moments:
    """The means ``[columns]`` of the columns of a text's keys, or queries, and of their squares."""

    means: F64
    squares: F64

    @classmethod
    def of(cls, rows: NDArray[Any]) -> Moments:
        wide = rows.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(wide.mean(axis=0), np.square(wide).mean(axis=0))


def scale_keys(
    keys: Moments, queries: Sequence[Moments], kv_heads: int, head_dim: int, centered: bool
) -> F32:
    """Return what keys are centered and scaled by, float32 ``[2, kv_heads * head_dim]``.

    A center is the key's mean, rounded to bfloat16, where keys are ``centered``, else 0. A factor
    is the root of the size of what is left over that of the queries which read it, a power of
    ``2 ** (1 / 8)``: turned and rounded, keys then lose least where queries are large. Where a
    value is not finite, keys stay as they are.
    """
    size = kv_heads * head_dim
    as_they_are = np.stack([np.zeros(size, np.float32), np.ones(size, np.float32)])
    if not all(np.isfinite(each.squares).all() for each in (keys, *queries)):
        return as_they_are
    centers = keys.means if centered else np.zeros(size)
    spread = _sizes(keys.squares - 2 * centers * keys.means + np.square(centers))
    asked = [each.squares.reshape(kv_heads, -1, head_dim).mean(axis=1) for each in queries]
    factors = np.sqrt(spread / _sizes(np.mean(asked, axis=0).reshape(-1)))
    steps = np.rint(_STEPS_PER_OCTAVE * np.log2(factors)) / _STEPS_PER_OCTAVE
    as_they_are[0] = centers.astype(np.float32).astype(ml_dtypes.bfloat16)
    as_they_are[1] = np.exp2(steps)
    return as_they_are


def _sizes(squares: F64) -> F64:
    """The roots of mean squares; none is 0."""
    roots = np.sqrt(np.maximum(squares, 0.0))
    sizes: F64 = np.maximum(roots, max(_LEAST * roots.mean(), np.finfo(np.float32).tiny))
    return sizes
