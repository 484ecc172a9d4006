"""Mixtures of experts in NumPy, written to be read. float32 throughout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.numerics import F32, activate, product
from penstock.backends.reference.schemes import CanonicalTensor
from penstock.models.spec import Activation

Int32s = NDArray[np.int32]


def route(logits: F32, top_k: int, over_all: bool, normalize: bool) -> tuple[Int32s, F32]:
    """Ids ``[rows, top_k]`` of the experts with the highest scores, and the share of each.

    ``over_all``: shares are of a softmax over all scores, else over the chosen ones.
    """
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(logits, ids, axis=1)
    most = chosen[:, :1]
    of = logits if over_all else chosen
    shares = np.exp(chosen - most) / np.exp(of - most).sum(axis=1, keepdims=True)
    if normalize:
        shares = shares / shares.sum(axis=1, keepdims=True)
    return ids.astype(np.int32), shares.astype(np.float32)


Multiply = Callable[[F32, Any], F32]


def expert_product(
    x: F32,
    ids: Int32s,
    parts: Sequence[Sequence[F32 | CanonicalTensor] | F32],
    gated: Activation | None,
    multiply: Multiply = product,
) -> F32:
    """Each row of x by the matrix of its expert, as :class:`penstock.plan.ops.ExpertLinear` says.

    x ``[T, k_in]`` or ``[T * top_k, k_in]``, ids ``[T, top_k]``; parts have a matrix ``[n, k_in]``
    for each expert, and ``multiply`` gives rows times one of these.
    """
    each = ids.reshape(-1)
    rows = x if len(x) == len(each) else np.repeat(x, ids.shape[1], axis=0)
    outs = []
    for weights in parts:
        out = np.empty((len(each), weights[0].shape[0]), np.float32)
        for expert in np.unique(each):
            out[each == expert] = multiply(rows[each == expert], weights[expert])
        outs.append(out)
    return outs[0] if gated is None else activate(outs[0], gated) * outs[1]


def combine(x: F32, shares: F32) -> F32:
    """The sum of each token's rows by rank, each times its share: ``[T, c]``."""
    rows = x.reshape(*shares.shape, x.shape[1])
    out = np.zeros((len(shares), rows.shape[2]), np.float32)
    for rank in range(shares.shape[1]):
        out += shares[:, rank, None] * rows[:, rank]
    return out
