"""Squared gradients of a model's loss by its weights, as methods ask for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import WeightError
from penstock.plan.lower import lower
from penstock.quantize.grid import F32
from penstock.quantize.matrices import transposed
from penstock.quantize.samples import Samples
from penstock.quantize.source import SourceModel

Compute = Callable[[Path, Sequence[Sequence[int]], Collection[str]], Mapping[str, F32]]
"""Computes those of a checkpoint's matrices, by their names, for samples of token ids:
:func:`penstock.train.squared_gradients.squared_gradients`, which needs torch."""

_INSTEAD: Final = "take --sensitivity inputs"


class SquaredGradients:
    """Squared gradients by each weight, computed for all matrices at once where one is first asked
    for."""

    def __init__(self, source: SourceModel, samples: Samples, compute: Compute) -> None:
        self._source, self._samples, self._compute = source, samples, compute

    def of(self, name: str) -> F32:
        """Those of a matrix ``[n, k]``, summed over the samples, each of which is squared by
        itself. Raises WeightError where they are not finite."""
        there = name in self._source.shapes
        stored = self._source.stored_name(name) if there else name
        if stored not in self._all:
            raise WeightError(
                f"transformers has no weight {stored}, so there are no gradients of it; {_INSTEAD}"
            )
        found = self._all[stored]
        if not np.isfinite(found).all():
            raise WeightError(
                f"gradients by {name} are not finite for this text: the model overflows; {_INSTEAD}"
            )
        return found.T if name in self._transposed else found

    @cached_property
    def _transposed(self) -> frozenset[str]:
        """The tensors that are stored as ``[k, n]``."""
        spec = self._source.spec
        weights = lower(spec, spec.dtype).weights.values()
        return frozenset(name for weight in weights for name in transposed(weight.source))

    @cached_property
    def _all(self) -> Mapping[str, F32]:
        names = frozenset(map(self._source.stored_name, self._source.tensors))
        return self._compute(self._source.folder, self._samples.tokens, names)
