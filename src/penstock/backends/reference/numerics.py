"""The mathematics of ops but for products, in NumPy, written to be read. float32 throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.products import (
    F32,
    in_pieces,
    product,
    product_of_pieces,
    sum_of_pieces,
)
from penstock.models.spec import Activation, ClampedSwiglu, Gating


def as_bfloat16(x: F32) -> F32:
    """``x`` rounded to bfloat16 (nearest even), still stored as float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def rms_norm(x: F32, weight: F32 | None, eps: float) -> F32:
    """Return the RMS norm over the last axis: ``x / sqrt(mean(x**2) + eps) * weight``."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    normed = x / np.sqrt(mean + np.float32(eps))
    return (normed if weight is None else normed * weight).astype(np.float32)


def layer_norm(x: F32, weight: F32 | None, bias: F32 | None, eps: float) -> F32:
    """Return the layer norm over the last axis: ``(x - mean) / sqrt(variance + eps) * weight +
    bias``."""
    centered = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centered), axis=-1, keepdims=True, dtype=np.float32)
    normed = centered / np.sqrt(variance + np.float32(eps))
    if weight is not None:
        normed = normed * weight
    return (normed if bias is None else normed + bias).astype(np.float32)


def soft_cap(x: F32, cap: float) -> F32:
    result: F32 = np.float32(cap) * np.tanh(x / np.float32(cap))
    return result


def activate(x: F32, kind: Activation) -> F32:
    if kind == "identity":
        return x
    if kind == "silu":
        factor = 1.0 / (1.0 + np.exp(-x))
    elif kind == "gelu_tanh":
        factor = 0.5 * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    elif kind == "sigmoid":
        return (1.0 / (1.0 + np.exp(-x))).astype(np.float32)
    elif kind in ("relu", "relu2"):
        positive = np.where(x < 0, np.float32(0), x)
        return (positive * positive if kind == "relu2" else positive).astype(np.float32)
    else:
        erf = np.vectorize(math.erf, otypes=[np.float32])
        factor = 0.5 * (1.0 + erf(x / math.sqrt(2.0)))
    return (x * factor).astype(np.float32)


def gated(gate: F32, up: F32, kind: Gating) -> F32:
    """``activation(gate) * up``, or what :class:`~penstock.models.spec.ClampedSwiglu` says."""
    if not isinstance(kind, ClampedSwiglu):
        return activate(gate, kind) * up
    limit, alpha = np.float32(kind.limit), np.float32(kind.alpha)
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray((u + np.float32(1)) * (g * sigmoid(alpha * g)), np.float32)


def sigmoid(x: F32) -> F32:
    result: F32 = np.float32(1) / (np.float32(1) + np.exp(-x).astype(np.float32))
    return result


def rotate(x: F32, cos: F32, sin: F32, interleaved: bool = False) -> F32:
    """Rotary embedding of the first ``dim`` components, in halves or as neighbours.

    x ``[T, heads, head_dim]``; cos and sin ``[T, dim / 2]`` with ``dim <= head_dim``.
    """
    half = cos.shape[1]
    c, s = cos[:, None, :], sin[:, None, :]
    turned = x.copy()
    places = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    first, second = (x[..., place] for place in places)
    turned[..., places[0]] = first * c - second * s
    turned[..., places[1]] = second * c + first * s
    return turned


def attend(
    q: F32,
    keys: F32,
    values: F32,
    positions: NDArray[np.int32],
    scale: float,
    window: int | None,
    softcap: float | None = None,
    slopes: Sequence[float] | None = None,
    sinks: F32 | None = None,
    chunk: int | None = None,
    slope_factor: float | None = None,
) -> F32:
    """Causal attention of one sequence, as :class:`penstock.plan.ops.Attention` defines it.

    q ``[tokens, heads, d]`` at ``positions``; keys ``[context, kv_heads, d]`` and values
    ``[context, kv_heads, e]`` from position 0; slopes and sinks, where there are any, one for each
    head. Returns ``[tokens, heads, e]``.
    """
    group = q.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    heads = range(q.shape[1])  # one by one: no bit depends on how many there are
    scores = np.stack([product(q[:, h], keys[:, h]) for h in heads]) * np.float32(scale)
    if softcap is not None:
        scores = soft_cap(scores, softcap)
    distance: NDArray[np.int64] = positions.astype(np.int64)[:, None] - np.arange(len(keys))
    if slopes is not None and slope_factor is not None:
        each = np.asarray(slopes, np.float32)[:, None]
        places = (np.arange(len(keys), dtype=np.float32), positions.astype(np.float32))
        theirs, own = (as_bfloat16(each * as_bfloat16(place)) for place in places)
        scores = scores + np.float32(slope_factor) * (theirs[:, None, :] - own[:, :, None])
    elif slopes is not None:
        scores = scores - np.asarray(slopes, np.float32)[:, None, None] * distance.astype(
            np.float32
        )
    reach = len(keys) if window is None else window
    visible = (distance >= 0) & (distance < reach)
    if chunk is not None:
        visible &= distance <= positions.astype(np.int64)[:, None] % chunk
    scores = np.where(visible, scores, -np.inf)
    most = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        most = np.maximum(most, sinks[:, None, None])
    weights = in_pieces(np.exp(scores - most))
    total = sum_of_pieces(weights)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - most)
    weights /= total
    # A masked slot may hold anything, NaN too: it must not be multiplied by its zero.
    seen = np.where(np.any(visible, axis=0)[:, None, None], values, 0.0)
    by_component = in_pieces(np.ascontiguousarray(seen.transpose(1, 2, 0), dtype=np.float32))
    return np.stack([product_of_pieces(weights[h], by_component[h]) for h in heads], axis=1)
