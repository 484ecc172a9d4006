"""Ops of mixtures of experts: which experts a token is given to, and what they make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.models.spec import Activation
from penstock.plan.ops.base import BufferName, Op, WeightName
from penstock.plan.ops.common import LinearPart
from penstock.quant.scheme import QuantScheme


@dataclass(frozen=True)
class Route(Op):
    """The experts of each token, highest score first, and the share of each in the sum.

    logits ``[T, experts]`` float32, the router's scores. ids ``[T, k]`` int32: the experts with the
    k highest scores in descending order, the lower id first where scores are equal. shares
    ``[T, k]`` float32: with ``scores`` "all" what these experts have of a softmax over all scores,
    divided by its sum where ``normalize``; with "chosen", a softmax over these k scores.
    """

    _reads = ("logits",)
    _writes = ("ids", "shares")
    logits: BufferName
    ids: BufferName
    shares: BufferName
    scores: Literal["all", "chosen"]
    normalize: bool


@dataclass(frozen=True)
class ExpertLinear(Op):
    """Row r of out is x's row times the matrix of the expert ``ids[r // k, r % k]``.

    x ``[T, k_in]``, of which row ``r // k`` is meant, or ``[k * T, k_in]``, of which row r is; ids
    ``[T, k]`` int32; out ``[k * T, n]`` in its element type. Weights are stacked by expert,
    ``[experts, n, k_in]``. With ``gated`` there are two parts of equal size, gate and up, and
    ``out = gated(x @ gate[e].T) * (x @ up[e].T)``, else there is one. Products are accumulated in
    float32 over ascending columns, never split.

    With a ``scheme``, and ``weight_only``, a row is rounded and multiplied as
    :class:`~penstock.plan.ops.Linear` says of a product with its expert's matrix alone.
    """

    _reads = ("x", "ids")
    _writes = ("out",)
    x: BufferName
    ids: BufferName
    out: BufferName
    k: int
    """Number of columns of x."""
    parts: tuple[LinearPart, ...]
    gated: Activation | None = None
    scheme: QuantScheme | None = None
    """What the matrices of all experts are quantized to."""
    weight_only: bool = False

    @property
    def n(self) -> int:
        """Number of columns of out."""
        return self.parts[0].n

    @property
    def weights(self) -> tuple[WeightName, ...]:
        return tuple(part.weight for part in self.parts)


@dataclass(frozen=True)
class CombineExperts(Op):
    """``out[t]`` is the sum of ``shares[t, i] * x[k * t + i]`` over ascending i, in float32.

    x ``[k * T, c]`` float32, shares ``[T, k]`` float32, out ``[T, c]`` float32.
    """

    _reads = ("x", "shares")
    _writes = ("out",)
    x: BufferName
    shares: BufferName
    out: BufferName
