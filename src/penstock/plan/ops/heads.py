"""Ops whose heads have weights of their own."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.ops.base import BufferName, Op, WeightName


@dataclass(frozen=True)
class HeadLinear(Op):
    """Each head's columns of x times a matrix of its own: a product with a block-diagonal matrix.

    x ``[rows, heads * k]`` in float32 or the plan's 16-bit type, out ``[rows, heads * n]`` in out's
    element type; ``out[:, h * n : (h + 1) * n] = x[:, h * k : (h + 1) * k] @ W[h].T``, where W[h]
    ``[n, k]`` is rows ``h * n .. (h + 1) * n`` of the weight ``[heads * n, k]``. ``transposed``:
    the weight is ``[heads * k, n]``, and W[h] is the transpose of its rows
    ``h * k .. (h + 1) * k``. Products are accumulated in float32 over ascending k, never split. The
    weight is never quantized.
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight",)
    x: BufferName
    out: BufferName
    weight: WeightName
    heads: int
    k: int
    n: int
    transposed: bool = False
