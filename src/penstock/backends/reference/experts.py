"""Mixtures of experts in NumPy, written to be read. float32 throughout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.numerics import gated, sigmoid
from penstock.backends.reference.products import F32, product
from penstock.backends.reference.schemes import CanonicalTensor
from penstock.models.spec import Gating, Routing

Int32s = NDArray[np.int32]


def route(
    logits: F32,
    top_k: int,
    routing: Routing,
    choice_bias: F32 | None = None,
    share_scale: F32 | None = None,
) -> tuple[Int32s, F32]:
    """Ids ``[rows, top_k]`` of each row's experts, and the share of each, as
    :class:`penstock.plan.ops.Route` defines them."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if routing.scores == "sparsemixer":
            ids, shares = _mixed_sparsely(logits, top_k, routing.jitter)
        else:
            scores = _scores(logits, routing)
            summed = routing.groups > 1 and routing.group_score == "top2"
            decides = logits if choice_bias is None and not summed else scores
            if choice_bias is not None:
                decides = decides + choice_bias
            ids = _highest(decides, top_k, _out_of_groups(decides, routing))
            shares = np.take_along_axis(scores, ids, axis=1)
            if routing.scores == "softmax_chosen":
                shares = _exponentials(shares)
                shares = shares / _row_sums(shares)
        if routing.normalize:
            total = np.maximum(_row_sums(shares), np.float32(routing.normalize_least))
            shares = (shares / (total + np.float32(routing.normalize_eps))).astype(np.float32)
        if routing.scale != 1.0:
            shares = shares * np.float32(routing.scale)
        if share_scale is not None:
            shares = shares * share_scale[ids]
    shares[np.isnan(logits).any(axis=1)] = np.nan
    return ids.astype(np.int32), shares.astype(np.float32)


def _scores(logits: F32, routing: Routing) -> F32:
    if routing.scores == "softmax_chosen":
        return logits
    if routing.scores == "sigmoid":
        return sigmoid(logits)
    each = _exponentials(logits)
    return each / _row_sums(each)


def _exponentials(x: F32) -> F32:
    result: F32 = np.exp(x - x.max(axis=1, keepdims=True))
    return result


def _row_sums(x: F32) -> F32:
    """``[rows, 1]``, in an order that depends on the number of columns alone."""
    result: F32 = np.ascontiguousarray(x).sum(axis=1, keepdims=True)
    return result


def _highest(x: F32, number: int, out: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Columns of the highest values, highest first, the first ones of equal; NaN is the lowest.
    Those that are ``out`` come last."""
    order = np.argsort(-x, axis=1, kind="stable") if out is None else np.lexsort((-x, out))
    return order[:, :number]


def _out_of_groups(decides: F32, routing: Routing) -> NDArray[np.bool_] | None:
    """Which experts are in groups that are not chosen; None where there are no groups."""
    if routing.groups == 1:
        return None
    grouped = decides.reshape(len(decides), routing.groups, decides.shape[1] // routing.groups)
    ordered = -np.sort(-grouped, axis=2)  # NaN last
    value = ordered[:, :, 0]
    if routing.group_score == "top2":
        value = value + ordered[:, :, 1]
    out = np.ones(grouped.shape, bool)
    np.put_along_axis(out, _highest(value, routing.groups_chosen)[:, :, None], False, axis=1)
    return out.reshape(decides.shape)


def _mixed_sparsely(logits: F32, top_k: int, jitter: float) -> tuple[NDArray[np.int64], F32]:
    ids = _highest(logits, top_k)
    shares = np.empty(ids.shape, np.float32)
    left = np.ones(logits.shape, bool)
    for rank in range(top_k):
        most = np.take_along_axis(logits, ids[:, rank : rank + 1], axis=1)
        below = (most - logits) / np.maximum(np.abs(logits), most)
        taking_part = left & ~(below > np.float32(2 * jitter))
        each = np.where(taking_part, np.exp(logits - most), np.float32(0))
        shares[:, rank] = (np.float32(1) / _row_sums(each))[:, 0]
        np.put_along_axis(left, ids[:, rank : rank + 1], False, axis=1)
    return ids, shares


def expert_product(
    x: F32,
    ids: Int32s,
    parts: Sequence[Sequence[F32 | CanonicalTensor] | F32],
    biases: Sequence[F32 | None],
    kind: Gating | None,
    multiply: Callable[[F32, Any], F32] = product,
) -> F32:
    """Each row of x by the matrix of its expert, as :class:`penstock.plan.ops.ExpertLinear` says.

    x ``[T, k_in]`` or ``[T * top_k, k_in]``, ids ``[T, top_k]``; parts have a matrix ``[n, k_in]``
    for each expert, and ``multiply`` gives rows times one of these; biases ``[experts, n]`` each.
    """
    each = ids.reshape(-1)
    rows = _row_for_each(x, ids.shape[1], len(each))
    outs = []
    for weights, bias in zip(parts, biases, strict=True):
        out = np.empty((len(each), weights[0].shape[0]), np.float32)
        for expert in np.unique(each):
            out[each == expert] = multiply(rows[each == expert], weights[expert])
        outs.append(out if bias is None else out + bias[each])
    return outs[0] if kind is None else gated(outs[0], outs[1], kind)


def scale_rows(x: F32, by: F32) -> F32:
    """Each row of x times its number in ``by`` ``[T, k]``: ``[k * T, c]``."""
    return _row_for_each(x, by.shape[1], by.size) * by.reshape(-1, 1)


def _row_for_each(x: F32, top_k: int, number: int) -> F32:
    return x if len(x) == number else np.repeat(x, top_k, axis=0)


def combine(x: F32, top_k: int, shares: F32 | None) -> F32:
    """The sum of each token's ``top_k`` rows by rank, each times its share, if it has one:
    ``[T, c]``."""
    rows = x.reshape(len(x) // top_k, top_k, x.shape[1])
    out = np.zeros((len(rows), rows.shape[2]), np.float32)
    for rank in range(top_k):
        out += rows[:, rank] if shares is None else shares[:, rank, None] * rows[:, rank]
    return out
