"""Rounded matrices as functions of what stays continuous in them, for training after rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Stored = Callable[[F32], F32]
"""What numbers of any shape become when they are stored and read again."""


@dataclass(frozen=True)
class ScaledPoints:
    """A matrix ``[n, k]`` of points times scales.

    Row after row, each ``run`` weights share a scale, the last ones perhaps fewer: weights are
    ``(points - zeros) * scales``. Where there are ``columns``, int ``[k]``, place j of a row of
    points is column ``columns[j]``.
    """

    points: NDArray[np.float32] | NDArray[np.uint8]
    """``[n, k]``."""
    scales: F32
    """``[ceil(n * k / run)]``, above 0."""
    zeros: NDArray[np.int32]
    """As many; whole numbers, which are stored as codes are."""
    run: int
    stored: Stored
    """How scales are stored."""
    highest: int | None = None
    """The greatest code, and zero, where points are codes, from 0 on."""
    shifts: bool = False
    """Whether zeros may change."""
    sparse: bool = False
    """Whether what is 0 has to stay 0."""
    wanted: F32 | None = None
    """What was rounded, ``[n, k]`` in the order of points, where codes may change: they begin as
    near to it as rounds to them."""
    columns: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.points.shape


@dataclass(frozen=True)
class RowValues:
    """A matrix ``[n, k]`` of codes of each row's own values, with some weights apart.

    codes uint8 ``[n, k]``; values float32 ``[n, count]``; apart bool ``[n, k]``, of weights that
    are ``outliers`` float32, row after row.
    """

    codes: NDArray[np.uint8]
    values: F32
    apart: NDArray[np.bool_]
    outliers: F32
    stored: Stored
    """How values and outliers are stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape


@dataclass(frozen=True)
class SparseValues:
    """A matrix ``[n, k]`` in floats, whose zeros stay."""

    values: F32
    stored: Stored

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


@dataclass(frozen=True)
class Vector:
    """A norm's weights, or a bias: ``[k]``."""

    values: F32
    stored: Stored

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


Adjustable = ScaledPoints | RowValues | SparseValues | Vector


@dataclass(frozen=True)
class Adjusted:
    """What training has made of weights, by their names, and what it has gained on text that it has
    not read: divergences from the model in floats, in nats a token."""

    weights: Mapping[str, Adjustable]
    before: float
    after: float
