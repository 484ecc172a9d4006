"""Columns of matrices multiplied by factors, and what makes their input divided by these.

Products stay what they are, and rounding loses less where a column that multiplies large inputs is
large (AWQ), or where inputs are of more equal size (SmoothQuant). :mod:`penstock.plan.balance` says
which inputs can be divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.interface.sources import RowsOf, Shifted, Source, Stored
from penstock.plan.balance import scalable_inputs
from penstock.plan.ops import BufferName, Linear, Op, WeightName
from penstock.plan.plan import Plan

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Maker:
    """Rows, or numbers, of a tensor, each of which makes a column of an input."""

    tensor: str
    rows: tuple[tuple[int, int], ...]
    """Runs (first, end), one after another."""
    shift: float = 0.0
    """What is added to the tensor's values before they make anything."""

    def made(self, values: F32) -> F32:
        """What makes the columns, of the tensor's values."""
        rows = np.concatenate([values[slice(*run)] for run in self.rows])
        made: F32 = rows + np.float32(self.shift)
        return made

    def divided(self, values: F32, factors: F32) -> F32:
        """All of the tensor, with its rows divided by factors ``[k]``."""
        made = values.copy()
        first = 0
        for begin, end in self.rows:
            own = factors[first : first + end - begin]
            own = own.reshape(-1, *[1] * (values.ndim - 1))
            made[begin:end] = (values[begin:end] + np.float32(self.shift)) / own
            made[begin:end] -= np.float32(self.shift)
            first += end - begin
        return made


@dataclass(frozen=True)
class BalancedInput:
    """An input that may be balanced, with the tensors that make it and the modules that multiply
    it."""

    buffer: BufferName
    makers: tuple[Maker, ...]
    modules: tuple[str, ...]

    @property
    def tensors(self) -> frozenset[str]:
        """The tensors that change where it is balanced."""
        matrices = (f"{module}.weight" for module in self.modules)
        return frozenset((*matrices, *(maker.tensor for maker in self.makers)))


def balanced_inputs(plan: Plan, modules: Mapping[WeightName, str]) -> Iterator[BalancedInput]:
    """The inputs of the fused ``plan`` that may be balanced, where ``modules`` has the weights that
    are whole matrices to be quantized, and the modules that they are of.

    Those are left out whose tensors hold the weights in another way than rows and sums.
    """

    def rounded(op: Op) -> bool:
        return isinstance(op, Linear) and all(part.weight in modules for part in op.parts)

    for each in scalable_inputs(plan, rounded):
        own = dict.fromkeys(modules[name] for name in each.matrices)
        parts = {name for name, module in modules.items() if module in own}
        makers = [_maker(plan.weights[name].source) for name in each.makers]
        if parts == set(each.matrices) and None not in makers:
            known = tuple(maker for maker in makers if maker is not None)
            yield BalancedInput(each.buffer, known, tuple(own))


def _maker(source: Source) -> Maker | None:
    match source:
        case Stored(name, shape):
            return Maker(name, ((0, shape[0]),))
        case Shifted(Stored(name, shape), by):
            return Maker(name, ((0, shape[0]),), by)
        case RowsOf(Stored(name), runs):
            return Maker(name, runs)
    return None
