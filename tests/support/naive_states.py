"""The recurrences of layers that keep states, of whole sequences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.models.spec import GatedDeltaSpec, SelectiveSpec

F64 = Any
Weight = Callable[[str], F64]


def gated_delta(d: GatedDeltaSpec, h: F64, weight: Weight, at: str) -> F64:
    """What a gated delta net makes of h ``[tokens, hidden]``."""
    at += "delta."
    u = np.concatenate([h @ weight(at + name).T for name in ("q", "k", "v")], axis=1)
    q, k, v = np.split(
        _silu(convolved(u, weight(at + "conv"))), [d.key_size, 2 * d.key_size], axis=1
    )
    b, a, z = (h @ weight(at + name).T for name in ("b", "a", "z"))
    beta = 1 / (1 + np.exp(-b))
    decay = np.exp(-np.exp(weight(at + "a_log")) * np.log1p(np.exp(a + weight(at + "dt_bias"))))
    out = np.zeros((len(h), d.value_heads, d.value_dim))
    for head in range(d.value_heads):
        group = head % d.key_heads if d.tiled else head // (d.value_heads // d.key_heads)
        keys, queries = (_unit(x[:, group * d.key_dim : (group + 1) * d.key_dim]) for x in (k, q))
        state = np.zeros((d.key_dim, d.value_dim))
        for t in range(len(h)):
            value = v[t, head * d.value_dim : (head + 1) * d.value_dim]
            state = decay[t, head] * state
            state += np.outer(keys[t], beta[t, head] * (value - keys[t] @ state))
            read = queries[t] @ state / np.sqrt(d.key_dim)
            gate = _silu(z[t, head * d.value_dim : (head + 1) * d.value_dim])
            normed = read / np.sqrt((read**2).mean() + d.eps) * weight(at + "norm")
            out[t, head] = normed * gate
    return out.reshape(len(h), -1) @ weight(at + "o").T


def selective(s: SelectiveSpec, h: F64, weight: Weight, at: str) -> F64:
    """What a selective scan makes of h ``[tokens, hidden]``."""
    at += "scan."

    def linear(x: F64, name: str, bias: bool) -> F64:
        return x @ weight(at + name).T + (weight(f"{at}{name}.bias") if bias else 0.0)

    xbc, dt, z = (linear(h, name, s.bias) for name in ("xbc", "dt", "z"))
    dt, z = s.dt_factor * dt, s.z_factor * z
    bias = weight(at + "conv.bias") if s.conv_bias else 0.0
    xbc = _silu(convolved(xbc, weight(at + "conv"), bias))
    numbers = (weight(at + name) for name in ("a_log", "dt_bias", "d"))
    read, gate = scan(s, xbc, dt, *numbers), _silu(z)
    if s.eps is None:
        return linear(read * gate, "o", s.output_bias)
    parts = (read * gate if s.gate_first else read).reshape(len(h), s.groups, -1)
    parts = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + s.eps)
    normed = parts.reshape(len(h), -1) * weight(at + "norm")
    return linear(normed if s.gate_first else normed * gate, "o", s.output_bias)


def scan(s: SelectiveSpec, xbc: F64, dt: F64, a_log: F64, dt_bias: F64, skip: F64) -> F64:
    """What a selective scan reads, ``[tokens, heads * head_dim]``, of what was convolved."""
    x, b, c = np.split(xbc, [s.inner_size, s.inner_size + s.groups * s.state], axis=1)
    steps = np.clip(np.log1p(np.exp(dt + dt_bias)), *s.dt_limits)
    out = np.zeros((len(x), s.heads, s.head_dim))
    for head in range(s.heads):
        group = head // (s.heads // s.groups)
        own = slice(group * s.state, (group + 1) * s.state)
        state = np.zeros((s.head_dim, s.state))
        for t in range(len(x)):
            row = x[t, head * s.head_dim : (head + 1) * s.head_dim]
            state = np.exp(-np.exp(a_log[head]) * steps[t, head]) * state
            state += np.outer(steps[t, head] * row, b[t, own])
            out[t, head] = state @ c[t, own] + skip[head] * row
    return out.reshape(len(x), -1)


def convolved(u: F64, taps: F64, bias: F64 = 0.0) -> F64:
    """Each column of u ``[tokens, columns]`` along the tokens with its taps."""
    count, kernel = len(u), taps.shape[1]
    padded = np.concatenate([np.zeros((kernel - 1, u.shape[1])), u])
    return sum(taps[:, j] * padded[j : j + count] for j in range(kernel)) + bias


def _silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


def _unit(x: F64) -> F64:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)
