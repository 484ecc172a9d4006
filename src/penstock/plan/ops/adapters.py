"""Low-rank additions to products, by the adapter of each row's sequence.

A step says which slot of adapters a sequence uses (``StepInput.adapters``), if any, and what is in
the slots is written between two steps. A row without an adapter is left as it is, bit by bit, and
so is one whose adapter has nothing for a matrix. Rows of one adapter are computed together, but the
sums of a row have one order, whatever rows are beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.ops.base import BufferName, Op, WeightName


@dataclass(frozen=True)
class AdapterPart:
    """A matrix ``[n, k]`` of the plan to whose product adapters add."""

    target: WeightName
    n: int


@dataclass(frozen=True)
class AdapterDown(Op):
    """``low[r, i * rank + j] = scale * (x[r] . down[j])`` for part i and each row r of an adapter,
    j below the rank that the adapter has for the part; what is behind it is undefined.

    x ``[rows, k]`` in float32 or the plan's 16-bit type, low ``[rows, parts * rank]`` float32.
    Where x has the selected rows and low those of logits, the first rows of x are multiplied. Sums
    are accumulated in float32, of rounded weights: ``down`` and ``up`` are kept in the plan's type
    of weights where that is float32 or bfloat16, else in float32.

    With ``factors`` ``[k]``, x has been divided by these (``plan/balance.py``), and so the columns
    of ``down`` are multiplied by them when an adapter is written, before they are rounded.
    """

    _reads = ("x",)
    _writes = ("low",)
    _weights = ("factors",)
    x: BufferName
    low: BufferName
    k: int
    parts: tuple[AdapterPart, ...]
    rank: int
    """The largest rank of an adapter."""
    factors: WeightName | None = None


@dataclass(frozen=True)
class AdapterUp(Op):
    """``out[r, first + c] += sum over j of low[r, (at + i) * rank + j] * up[c, j]`` for part i and
    each row r of an adapter, where first is the number of columns of the parts before it.

    low float32, as :class:`AdapterDown` makes it, of which this op's parts begin with number
    ``at``; out ``[rows, sum of n]`` float32. The sum over ascending j, in float32, is added to out
    at once.

    With ``factors`` ``[n]``, of an op of one part, rows of ``up`` are multiplied by these when an
    adapter is written: what reads out expects its columns so.
    """

    _reads = ("low", "out")
    _writes = ("out",)
    _weights = ("factors",)
    low: BufferName
    out: BufferName
    parts: tuple[AdapterPart, ...]
    at: int
    rank: int
    factors: WeightName | None = None
