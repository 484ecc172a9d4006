"""Heads as their published forms define them, row by row from the tensors of a checkpoint.

Slow and plain: every draft row attends, with ordinary causal attention, to a list of rows that
is built anew for each prefix.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, position: int, theta: float) -> Tensor:
    """``x`` ``[heads, D]`` of one row."""
    half = x.shape[-1] // 2
    angles = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().float(), angles.sin().float()
    low, high = x[:, :half], x[:, half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def silu_mlp(x: Tensor, tensors: Tensors, prefix: str) -> Tensor:
    gate = torch.nn.functional.silu(tensors[f"{prefix}mlp.gate_proj.weight"] @ x)
    up = tensors[f"{prefix}mlp.up_proj.weight"] @ x
    return tensors[f"{prefix}mlp.down_proj.weight"] @ (gate * up)


class Layer:
    """One layer with its cache of rows; ``config`` is what config.json says."""

    def __init__(self, tensors: Tensors, config: Mapping[str, object], prefix: str) -> None:
        self.tensors, self.config, self.prefix = tensors, config, prefix
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def row(self, x: Tensor, wide: Tensor) -> Tensor:
        """The next row: ``x`` ``[H]`` is added to, attention reads ``wide``."""
        config, prefix = self.config, self.prefix
        size = int(str(config["head_dim"]))
        theta, eps = float(str(config["rope_theta"])), float(str(config["rms_norm_eps"]))
        q, k, v = (
            (self.tensors[f"{prefix}self_attn.{name}_proj.weight"] @ wide).view(-1, size)
            for name in "qkv"
        )
        self.keys.append(rope(k, len(self.keys), theta))
        self.values.append(v)
        q = rope(q, len(self.keys) - 1, theta)
        group = len(q) // len(k)
        mixed = []
        for head in range(len(q)):
            keys = torch.stack([key[head // group] for key in self.keys])
            values = torch.stack([value[head // group] for value in self.values])
            mixed.append((keys @ q[head] / size**0.5).softmax(-1) @ values)
        x = x + self.tensors[f"{prefix}self_attn.o_proj.weight"] @ torch.cat(mixed)
        normed = rms_norm(x, self.tensors[f"{prefix}post_attention_layernorm.weight"], eps)
        return x + silu_mlp(normed, self.tensors, prefix)


def eagle1_chain(
    tensors: Tensors,
    config: Mapping[str, object],
    embedding: Tensor,
    output: Tensor,
    hidden: Tensor,
    ids: Tensor,
) -> list[Tensor]:
    """Logits of every row of a draft after a prefix of ``len(hidden)`` tokens.

    ``hidden`` ``[P, H]`` are the target's features of the prefix, ``ids`` ``[P + S]`` its tokens
    and those that were drafted. Of the ``P + S - 1`` rows the last ``S`` tell what comes after
    the prefix and its next token; row ``j`` tells token ``j + 2``.
    """
    layer = Layer(tensors, config, "layers.0.")
    rows, x = [], hidden[0]
    for j in range(len(ids) - 1):
        feature = hidden[j] if j < len(hidden) else x
        wide = torch.cat((embedding[ids[j + 1]], feature))
        wide = tensors["fc.weight"] @ wide + tensors["fc.bias"]
        x = layer.row(wide, wide)
        rows.append(output @ x)
    return rows


def eagle3_chain(
    tensors: Tensors, config: Mapping[str, object], embedding: Tensor, taps: Tensor, ids: Tensor
) -> list[Tensor]:
    """Draft as :func:`eagle1_chain` does; ``taps`` are ``[P, 3 * H]``."""
    layer = Layer(tensors, config, "midlayer.")
    eps = float(str(config["rms_norm_eps"]))
    rows, x = [], taps[0]
    for j in range(len(ids) - 1):
        g = tensors["fc.weight"] @ taps[j] if j < len(taps) else x
        wide = torch.cat(
            (
                rms_norm(embedding[ids[j + 1]], tensors["midlayer.input_layernorm.weight"], eps),
                rms_norm(g, tensors["midlayer.hidden_norm.weight"], eps),
            )
        )
        x = layer.row(g, wide)
        rows.append(tensors["lm_head.weight"] @ rms_norm(x, tensors["norm.weight"], eps))
    return rows
