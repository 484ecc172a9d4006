"""MLPs and mixtures of experts, computed from their declarations in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.models.spec import (
    Activation,
    ClampedSwiglu,
    ExpertsSpec,
    Gating,
    MlpSpec,
    NormSpec,
    Routing,
)

F64 = Any
Weight = Callable[[str], F64]


def norm_of(x: F64, norm: NormSpec, weight: Weight, name: str) -> F64:
    centered = x - x.mean(-1, keepdims=True) if norm.kind == "layer" else x
    scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + norm.eps)
    if norm.weight:
        scaled = scaled * weight(name)
    return scaled + weight(name + ".bias") if norm.bias else scaled


def linear(x: F64, weight: Weight, name: str, bias: bool) -> F64:
    y = x @ weight(name).T
    return y + weight(name + ".bias") if bias else y


def activated(x: F64, kind: Activation) -> F64:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "identity":
        return x
    if kind == "sigmoid":
        return 1 / (1 + np.exp(-x))
    if kind in ("relu", "relu2"):
        return np.maximum(x, 0) ** (2 if kind == "relu2" else 1)
    if kind == "gelu_tanh":
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _gated(gate: F64, up: F64, kind: Gating) -> F64:
    if not isinstance(kind, ClampedSwiglu):
        return activated(gate, kind) * up
    gate, up = np.minimum(gate, kind.limit), np.clip(up, -kind.limit, kind.limit)
    return (up + 1) * gate / (1 + np.exp(-kind.alpha * gate))


def mlp(m: MlpSpec, x: F64, weight: Weight, at: str) -> F64:
    up = linear(x, weight, at + "up", m.bias)
    if m.activation == "xielu":
        inner = _xielu(up, weight, at)
    elif m.gated:
        gate = m.gate_factor * linear(x, weight, at + "gate", m.bias)
        inner = _gated(gate, up, m.activation)
    else:
        inner = activated(up, m.activation)
    return m.output_factor * linear(inner, weight, at + "down", m.bias)


def _xielu(x: F64, weight: Weight, at: str) -> F64:
    p, n, beta, eps = (weight(f"{at}act_{name}")[0] for name in ("p", "n", "beta", "eps"))
    below = (np.expm1(np.minimum(x, eps)) - x) * (beta + np.log1p(np.exp(n)))
    return np.where(x > 0, np.log1p(np.exp(p)) * x * x, below) + beta * x


def experts(e: ExpertsSpec, g: F64, stream: F64, weight: Weight, at: str) -> F64:
    """Experts of an MLP that reads g, in a layer whose residual stream is ``stream``."""
    own, x, routed = e.norms, g, g
    norm = None if own is None else NormSpec(own.eps)
    if norm is not None:
        x, routed = (norm_of(stream, norm, weight, f"{at}{n}_norm") for n in ("experts", "router"))
    logits = linear(routed, weight, at + "router", e.routing.bias)
    if own is not None:
        logits = logits * own.router_scale
    bias = weight(at + "router.choice_bias") if e.routing.choice_bias else np.zeros(e.num_experts)

    def matrix(name: str, i: int) -> Callable[[F64], F64]:
        name = f"{at}experts.{name}"
        added = weight(name + ".bias")[i] if e.bias else 0.0
        return lambda row: weight(name)[i] @ row + added

    read = x if e.latent is None else linear(x, weight, at + "latent_in", e.latent_bias)
    out = np.zeros_like(read)
    for t, row in enumerate(read):
        shares = _shares(e.routing, e.top_k, logits[t], bias)
        for i, share in shares.items():
            if e.routing.share_scale:
                share = share * weight(at + "router.share_scale")[i]
            given = row * share if e.shares_on == "inputs" else row
            up = matrix("up", i)(given)
            gate = matrix("gate", i)(given) if e.gates else None
            inner = _maybe_gated(gate, up, e.activation)
            made = matrix("down", i)(inner)
            out[t] += made if e.shares_on == "inputs" else share * made
    if e.latent is not None:
        out = linear(out, weight, at + "latent_out", e.latent_bias)
    if e.shared is None:
        return out
    s, name = e.shared, at + "shared."
    up = linear(g, weight, name + "up", s.bias)
    gate = linear(g, weight, name + "gate", s.bias) if e.gates else None
    made = linear(_maybe_gated(gate, up, e.activation), weight, name + "down", s.bias)
    if s.gated:
        made = made / (1 + np.exp(-(g @ weight(name + "share").T)))
    if norm is None:
        return out + made
    experts = norm_of(out, norm, weight, at + "experts_post_norm")
    return experts + norm_of(made, norm, weight, at + "shared_post_norm")


def _maybe_gated(gate: F64 | None, up: F64, activation: Gating) -> F64:
    """The inside of an MLP: ``activation(up)`` where there is no gate."""
    if gate is not None:
        return _gated(gate, up, activation)
    assert isinstance(activation, str)
    return activated(up, activation)


def _shares(r: Routing, top_k: int, logits: F64, bias: F64) -> dict[int, float]:
    """The share of each expert that one token is given to."""
    scores = np.exp(logits - logits.max())
    scores /= scores.sum()
    if r.scores == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    elif r.scores == "softmax_chosen":
        scores = logits
    groups = np.split(np.arange(len(logits)), r.groups)

    def worth(group: F64) -> float:
        best = sorted(scores[group] + bias[group], reverse=True)
        return float(sum(best[: 2 if r.group_score == "top2" else 1]))

    if r.groups > 1:
        groups = sorted(groups, key=worth, reverse=True)[: r.groups_chosen]
    allowed = [int(i) for group in groups for i in group]
    chosen = sorted(allowed, key=lambda i: -(scores[i] + bias[i]))[:top_k]
    shares = scores[chosen]
    if r.scores == "softmax_chosen":
        shares = np.exp(shares - shares.max())
        shares /= shares.sum()
    elif r.scores == "sparsemixer":
        for rank, i in enumerate(chosen):
            left = [j for j in allowed if j not in chosen[:rank]]
            most = logits[i]
            near = [
                j for j in left if (most - logits[j]) / max(abs(logits[j]), most) <= 2 * r.jitter
            ]
            shares[rank] = 1 / np.exp(logits[near] - most).sum()
    if r.normalize:
        shares = shares / (max(shares.sum(), r.normalize_least) + r.normalize_eps)
    return dict(zip(chosen, shares * r.scale, strict=True))
