"""The tensors of a layer as quantizing it changes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sources import Stored
from penstock.models.spec import DType
from penstock.quantize.balancing import BalancedInput, Maker
from penstock.quantize.grid import F32, require_finite
from penstock.quantize.hessian import Hessian
from penstock.quantize.layers import Layer, Target
from penstock.quantize.methods import Methods
from penstock.quantize.source import SourceModel
from penstock.quantize.tensor_file import NewTensor
from penstock.weights.tensor_file import NUMPY_DTYPES


class Changed:
    """Values of tensors and matrices, float32, in the place of those of the checkpoint."""

    def __init__(self, source: SourceModel) -> None:
        self._source = source
        self._values: dict[str, F32] = {}
        self._matrices: dict[str, F32] = {}

    @property
    def names(self) -> Collection[str]:
        """The tensors that have changed."""
        return self._values.keys()

    def values(self, name: str) -> F32:
        """A tensor as it is now, not to be written to. Raises WeightError."""
        return self._values[name] if name in self._values else self._source.values(name)

    def put(self, name: str, values: F32) -> None:
        """Change a tensor."""
        self._values[name] = values

    def matrix(self, target: Target) -> F32:
        """A matrix ``[n, k]`` as it is now, not to be written to. Raises WeightError."""
        if isinstance(target.source, Stored):
            return self.values(target.source.name)
        if target.module in self._matrices:
            return self._matrices[target.module]
        return self._source.matrix(target.source)

    def put_matrix(self, target: Target, matrix: F32) -> None:
        """Change a matrix ``[n, k]``."""
        if isinstance(target.source, Stored):
            self.put(target.source.name, matrix)
        else:
            self._matrices[target.module] = matrix

    def forget(self, target: Target) -> None:
        """Drop what a matrix has become, which is rounded."""
        self._matrices.pop(target.module, None)
        for name in target.tensors:
            self._values.pop(name, None)

    def as_stored(self, name: str, values: F32) -> F32:
        """Values that the checkpoint's type of a tensor has, nearest to those."""
        with np.errstate(over="ignore"):
            return values.astype(NUMPY_DTYPES[self._source.dtype(name)]).astype(np.float32)

    def arrays(self, dtype: DType) -> Mapping[str, NDArray[Any]]:
        """All that has changed, in the type in which the model runs."""
        return {name: values.astype(NUMPY_DTYPES[dtype]) for name, values in self._values.items()}

    def stored(self, name: str) -> NewTensor:
        """A tensor that has changed, under its name in the files and in its type there."""
        dtype = NUMPY_DTYPES[self._source.dtype(name)]
        return NewTensor.of(self._source.stored_name(name), self._values[name].astype(dtype))


def balance(
    layer: Layer,
    method: Methods,
    changed: Changed,
    hessians: Mapping[str, Hessian],
) -> dict[str, Hessian]:
    """Multiply the columns of a layer's matrices by what ``method`` says, and divide what makes
    their inputs. Returns the Hessian of what each module multiplies then."""
    found = dict(hessians)
    targets = {target.module: target for target in layer.targets}
    for each in layer.balanced:
        first = each.modules[0]
        if first not in hessians:
            continue
        matrices = [changed.matrix(targets[module]) for module in each.modules]
        for module, matrix in zip(each.modules, matrices, strict=True):
            require_finite(matrix, module)
        factors = method.of(first).factors(matrices, hessians[first])
        if factors is None:
            continue
        factors = _divide(each, factors, changed, targets.keys())
        scaled = hessians[first].of_scaled(factors)
        for module, matrix in zip(each.modules, matrices, strict=True):
            changed.put_matrix(targets[module], matrix * factors)
            found[module] = scaled
    return found


def _divide(each: BalancedInput, factors: F32, changed: Changed, rounded: Collection[str]) -> F32:
    """Divide what makes an input; return the factors by which that has been divided, after values
    that are not quantized are rounded to the type that they are stored in."""
    for number, maker in enumerate(each.makers):
        before = changed.values(maker.tensor)
        after = maker.divided(before, factors)
        if maker.tensor.removesuffix(".weight") not in rounded:
            if number == 0 and before.ndim == 1:
                lost = _lost(maker, before, changed.as_stored(maker.tensor, after))
                factors = np.where(lost, np.float32(1), factors)
                after = changed.as_stored(maker.tensor, maker.divided(before, factors))
                factors = _kept(maker, before, after, factors)
            after = changed.as_stored(maker.tensor, after)
        changed.put(maker.tensor, after)
    return factors


def _lost(maker: Maker, before: F32, after: F32) -> NDArray[np.bool_]:
    """The columns that a type has too little range to divide."""
    old, new = maker.made(before), maker.made(after)
    lost: NDArray[np.bool_] = (old != 0) & ((new == 0) | ~np.isfinite(new))
    return lost


def _kept(maker: Maker, before: F32, after: F32, factors: F32) -> F32:
    """The factors by which a vector has been divided."""
    old, new = maker.made(before), maker.made(after)
    usable = (new != 0) & (old != 0)
    return np.where(usable, old / np.where(usable, new, np.float32(1)), factors)
