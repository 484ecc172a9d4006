"""Ops of mixtures of experts: which experts a token is given to, and what they make of it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models.activation import Gating
from penstock.models.experts_spec import Routing
from penstock.plan.ops.base import BufferName, Op, WeightName
from penstock.plan.ops.common import LinearPart
from penstock.quant.scheme import QuantScheme


@dataclass(frozen=True)
class Route(Op):
    """The experts of each token, in the order in which they are chosen, and the share of each.

    logits ``[T, experts]`` float32, of which ``z`` is one row; choice_bias ``[experts]`` float32,
    where ``routing`` has one, and likewise share_scale; ids ``[T, k]`` int32; shares ``[T, k]``
    float32. All arithmetic is in float32. Where any of z is NaN, all shares of the row are NaN.

    *Scores* are ``s = exp(z - m) / sum(exp(z - m))`` with ``m = max(z)``, summed over all experts
    ("softmax"), or ``1 / (1 + exp(-z))`` ("sigmoid").

    *Choice.* What decides is ``z`` itself, whose order the scores have, unless there is a
    choice bias or groups are chosen by "top2": then it is the score, plus ``choice_bias``, where
    there is one ("softmax_chosen": z plus it). Experts are in ``groups`` runs of equal length. The
    value of a group is the highest that decides of its experts ("max") or the highest plus the
    second ("top2"); the ``groups_chosen`` highest are chosen from, the earlier group first where
    values are equal. ids are those of the k highest that decide, the highest first, the lower id
    first where they are equal; 0.0 and -0.0 are equal. NaN counts as below all numbers, everywhere.

    *Shares* are the scores of the chosen; with "softmax_chosen", ``exp(z[i] - m) / sum(exp(z[j] -
    m))``, m and the sum taken over the chosen. Where ``normalize``, they are divided by ``max(sum,
    normalize_least) + normalize_eps`` of them, and then multiplied by ``scale``, where that is not
    1, and by the ``share_scale`` of their experts, where there is one. Sums over the chosen run in
    the order of ids; the order of a sum over all experts depends on their number alone.

    "sparsemixer" chooses k times the highest z of those that are not chosen yet, the lower id first
    where they are equal. Its share is ``exp(z - m) / sum(exp(z[j] - m))`` with m this z, summed
    over those not chosen before it for which ``(m - z[j]) / max(abs(z[j]), m) > 2 * jitter`` does
    not hold (it does not where z[j] is m), with 0 in the place of all others.
    """

    _reads = ("logits",)
    _writes = ("ids", "shares")
    _weights = ("choice_bias", "share_scale")
    logits: BufferName
    ids: BufferName
    shares: BufferName
    routing: Routing
    choice_bias: WeightName | None = None
    share_scale: WeightName | None = None


@dataclass(frozen=True)
class ExpertLinear(Op):
    """Row r of out is x's row times the matrix of the expert ``ids[r // k, r % k]``.

    x ``[T, k_in]``, of which row ``r // k`` is meant, or ``[k * T, k_in]``, of which row r is; ids
    ``[T, k]`` int32; out ``[k * T, n]`` in its element type. Weights are stacked by expert,
    ``[experts, n, k_in]``, and biases ``[experts, n]``, which are added to sums in float32. With
    ``gated`` there are two parts of equal size, gate and up, and ``out = gated(x @ gate[e].T +
    gate_bias[e]) * (x @ up[e].T + up_bias[e])``, or what
    :class:`~penstock.models.spec.ClampedSwiglu` makes of the two; else there is one. Products are
    accumulated in float32 over ascending columns, never split.

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
    gated: Gating | None = None
    scheme: QuantScheme | None = None
    """What the matrices of all experts are quantized to."""
    weight_only: bool = False

    @property
    def n(self) -> int:
        """Number of columns of out."""
        return self.parts[0].n

    @property
    def weights(self) -> tuple[WeightName, ...]:
        return tuple(w for p in self.parts for w in (p.weight, p.bias) if w is not None)


@dataclass(frozen=True)
class ScaleRows(Op):
    """Row r of out is x's row times ``by[r // k, r % k]``, or times the sigmoid of that.

    x ``[T, c]``, of which row ``r // k`` is meant, or ``[k * T, c]``, of which row r is; by
    ``[T, k]`` float32; out ``[k * T, c]``, and may be x where that has as many rows and is float32.
    In float32, ``1 / (1 + exp(-by))`` with ``sigmoid``, rounded to out's element type.
    """

    _reads = ("x", "by")
    _writes = ("out",)
    x: BufferName
    by: BufferName
    out: BufferName
    sigmoid: bool = False


@dataclass(frozen=True)
class CombineExperts(Op):
    """``out[t]`` is the sum of ``shares[t, i] * x[k * t + i]`` over ascending i, in float32.

    x ``[k * T, c]`` float32, shares ``[T, k]`` float32, out ``[T, c]`` float32. Without shares it
    is the sum of ``x[k * t + i]``. Sums begin at 0.
    """

    _reads = ("x", "shares")
    _writes = ("out",)
    x: BufferName
    shares: BufferName | None
    out: BufferName
