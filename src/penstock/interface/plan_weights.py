"""The weights that a plan declares: their sources, and what is done with the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sources import Shape, Source


@dataclass(frozen=True)
class Share:
    """The rows of a canonical weight that one of several ranks has."""

    name: str
    shape: Shape
    """The shape of the whole weight."""
    runs: tuple[tuple[int, int], ...]
    """Runs of rows (first, end), one after another."""
    each: bool = False
    """Whether these are rows of each matrix of a stack."""

    def of(self, whole: NDArray[Any]) -> NDArray[Any]:
        """The rows, of all of the weight; of one matrix of a stack, its own."""
        stack = self.each and whole.ndim == len(self.shape)
        some = [whole[:, slice(*run)] if stack else whole[slice(*run)] for run in self.runs]
        return some[0] if len(some) == 1 else np.concatenate(some, axis=int(stack))


@dataclass(frozen=True)
class Balance:
    """How a weight takes part in scaling the columns of matrices before they are quantized.

    Every column of the matrices is multiplied by a factor, and the weight that makes their input is
    divided by it, so that products stay what they are (SmoothQuant scales columns likewise, by
    activations). ``plan/balance.py`` says why, ``weights/smoothing.py`` what the factors are.
    """

    matrices: tuple[Source, ...]
    """All that multiply the same input, each ``[n, k]``."""
    side: Literal["matrix", "input"]
    """Whether the weight is one of them, or makes their input: a matrix ``[k, ...]`` or a vector
    ``[k]``, whose row, or number, i is divided by factor i."""
    input: str | None = None
    """The plan's buffer that the matrices multiply, where its columns are measured before weights
    are read (``plan/observation.py``); None: factors are of the matrices alone."""


@dataclass(frozen=True)
class PlanWeight:
    """A weight that ops of a plan read, and its source."""

    source: Source
    share: Share | None = None
    """The weight that it is some rows of, where a plan is one rank's."""
    checkpoint: Literal["own", "target"] = "own"
    """Whose checkpoint the source is in: the model's own, or that of the model which a head that
    drafts shares the weight with. What the target has quantized is then read as floats, as heads
    have a quantization of their own."""
    floats: bool = False
    """Whether a matrix is read as floats though the checkpoint has it quantized in a scheme: where
    its op multiplies no such."""
    balances: tuple[Balance, ...] = ()
    """What the values of the source are multiplied and divided by, in this order."""

    @property
    def shape(self) -> Shape:
        """Matrices are ``[outputs, inputs]``."""
        return self.source.shape
