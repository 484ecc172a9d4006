"""Balancing: a pass that evens out the columns of matrices which are rounded to grids of rows.

The error of a product whose both sides are rounded, each row with one scale, grows with the norm of
a row of its input times the norm of a row of its matrix. A column may be multiplied by a factor in
the matrix and divided by it in the input, which leaves the product as it is. Where the matrix's
columns have very different norms, as of trained models, the input's large columns are mostly those
where the matrix is small. Both norms fall when the matrix's columns get the same one: the
products of Gemma 3 270M lose half as much, in 8 bits as in 4. (Nagel et al., Data-free quantization
through weight equalization, 2019, do so before scales of whole matrices.) Their product is least
where a column is as large a part of both, so that factors are measured where they can be
(``plan/observation.py``), which takes a third to a half of the loss again.

A step computes nothing more: the weight of the norm that makes the input, or the rows of the up
matrix of a gated MLP, are divided as they are loaded. So only these inputs are balanced, and only
where nothing else reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.interface.plan_weights import Balance, PlanWeight
from penstock.models.activation import ClampedSwiglu
from penstock.plan.ops import (
    AddNorm,
    BufferName,
    LayerNorm,
    Linear,
    Op,
    RmsNorm,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.quant.scheme import GridScheme


def balance(plan: Plan, calibrated: bool = False) -> Plan:
    """Return the fused ``plan`` with :class:`~penstock.interface.plan_weights.Balance` where it can
    be.

    Its ops stay as they are. ``calibrated``: factors are of the inputs, too, which are measured
    before weights are read. Of weights in float16 nothing is balanced: that type has little range.
    """
    if plan.weight_dtype == "float16":
        return plan
    weights = dict(plan.weights)
    for each in scalable_inputs(plan, _is_rounded):
        _give(weights, each.makers, each.matrices, each.buffer if calibrated else None)
    return replace(plan, weights=weights)


@dataclass(frozen=True)
class ScalableInput:
    """An input of matrices whose columns may be divided by factors where it is made, if those of
    the matrices are multiplied by them."""

    buffer: BufferName
    makers: tuple[WeightName, ...]
    """The weights whose rows, or numbers, are factors of its columns."""
    matrices: tuple[WeightName, ...]
    """All that is multiplied with it."""


def scalable_inputs(plan: Plan, rounded: Callable[[Op], bool]) -> Iterator[ScalableInput]:
    """The inputs of the fused ``plan`` of this kind which nothing but products reads for which
    ``rounded`` holds."""
    uses = _Uses.of(plan)
    for op in plan.ops:
        for made in op.writes:
            makers, readers = _makers(op, made, rounded), uses.readers.get(made, ())
            if made in uses.kept or not makers or not all(map(rounded, readers)):
                continue
            matrices = tuple(
                w for reader in readers if isinstance(reader, Linear) for w in _parts(reader)
            )
            if matrices and all(map(uses.is_free, (*makers, *matrices))):
                yield ScalableInput(made, makers, matrices)


@dataclass(frozen=True)
class _Uses:
    """What a plan reads."""

    weights: dict[WeightName, PlanWeight]
    readers: dict[BufferName, tuple[Op, ...]]
    times: Counter[WeightName]
    """How often ops read each weight."""
    kept: frozenset[BufferName]
    """Buffers that are results, or written more than once."""

    @classmethod
    def of(cls, plan: Plan) -> _Uses:
        readers: dict[BufferName, tuple[Op, ...]] = {}
        for op in plan.ops:
            for name in set(op.reads):
                readers[name] = (*readers.get(name, ()), op)
        written = Counter(name for op in plan.ops for name in op.writes)
        kept = {name for name, times in written.items() if times > 1}
        return cls(
            plan.weights,
            readers,
            Counter(weight for op in plan.ops for weight in op.weights),
            frozenset(kept | set(plan.results)),
        )

    def is_free(self, name: WeightName) -> bool:
        """Whether a weight is read once, and is the model's own."""
        weight = self.weights[name]
        return weight.checkpoint == "own" and weight.share is None and self.times[name] == 1


def _makers(op: Op, made: BufferName, rounded: Callable[[Op], bool]) -> tuple[WeightName, ...]:
    """The weights whose rows, or numbers, are factors of the columns of ``made``, if ``op`` has
    such."""
    if isinstance(op, AddNorm | RmsNorm | LayerNorm) and made == op.out and op.weight is not None:
        bias = op.bias if isinstance(op, LayerNorm) else None
        return (op.weight,) if bias is None else (op.weight, bias)
    if isinstance(op, Linear) and rounded(op):
        if op.gated is None or isinstance(op.gated, ClampedSwiglu):
            return ()
        up = op.parts[1]
        return (up.weight,) if up.bias is None else (up.weight, up.bias)
    return ()


def _is_rounded(op: Op) -> bool:
    return isinstance(op, Linear) and isinstance(op.scheme, GridScheme) and not op.weight_only


def _parts(op: Linear) -> Iterable[WeightName]:
    return (part.weight for part in op.parts)


def _give(
    weights: dict[WeightName, PlanWeight],
    makes: Iterable[WeightName],
    matrices: Iterable[WeightName],
    measured: BufferName | None,
) -> None:
    sources = tuple(weights[name].source for name in matrices)
    for name in matrices:
        _add(weights, name, Balance(sources, "matrix", measured))
    for name in makes:
        _add(weights, name, Balance(sources, "input", measured))


def _add(weights: dict[WeightName, PlanWeight], name: WeightName, given: Balance) -> None:
    weight = weights[name]
    weights[name] = replace(weight, balances=(*weight.balances, given))
