"""Ops that fusion puts in the place of several primitive ones."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.models.spec import Activation
from penstock.plan.ops.base import BufferName, Op, WeightName


@dataclass(frozen=True)
class AddNorm(Op):
    """``residual += delta`` (where there is one), then ``RmsNorm`` of residual into out.

    residual ``[rows, c]`` float32, updated in place; delta float32; out in out's element type.
    """

    _reads = ("residual", "delta")
    _writes = ("residual", "out")
    _weights = ("weight",)
    residual: BufferName
    delta: BufferName | None
    out: BufferName
    weight: WeightName | None
    eps: float


@dataclass(frozen=True)
class AddActivated(Op):
    """``out = x + activation(y)``. All three float32 ``[rows, c]``; out may be x or y."""

    _reads = ("x", "y")
    _writes = ("out",)
    x: BufferName
    y: BufferName
    out: BufferName
    activation: Activation


@dataclass(frozen=True)
class RopeWrite(Op):
    """QK-norm (where the model has it), rotation of queries and keys, and the cache write.

    qkv ``[T, (heads + 2 * kv_heads) * head_dim]`` float32: queries, keys, values. q
    ``[T, heads * head_dim]`` receives the rotated queries in its element type; keys and values
    go to ``slots`` of ``layer`` as ``KvWrite`` puts them there.
    """

    _reads = ("qkv",)
    _writes = ("q",)
    _weights = ("q_norm", "k_norm")
    layer: int
    qkv: BufferName
    q: BufferName
    heads: int
    kv_heads: int
    head_dim: int
    rope: int
    q_norm: WeightName | None
    k_norm: WeightName | None
    eps: float
