"""Ops besides attention whose rows depend on the tokens before them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.ops.base import BufferName, Op, WeightName


@dataclass(frozen=True)
class ShortConv(Op):
    """A causal convolution along each sequence, every column by itself, over cached inputs.

    x ``[T, c]`` float32 is rounded to the type of rows in the cache of ``layer``
    (``cache.geometry.rows_dtype``), so that a token reads the same whether or not another is of its
    step. Then ``out[t] = bias + weight[:, 0] * x[t - kernel + 1] + ... + weight[:, kernel - 1] *
    x[t]``, where ``t - i`` is the token i before t in its sequence, and x is 0 before the first: in
    float32 from left to right, each product and its sum in one fused multiply-add, from 0 where
    there is no bias. Tokens of the step are read from x, in a draft tree those that t descends from
    (``StepInput.tree_parents``); those before it from the cache, in which x is then kept.

    weight ``[c, kernel]``, bias ``[c]``; out ``[T, c]`` float32, and not x. Of each block the cache
    keeps the rows of its last tokens, that of slot s in row ``s % rows`` (``KvLayer.rows``).
    """

    _reads = ("x",)
    _writes = ("out",)
    _weights = ("weight", "bias")
    mixes = True
    layer: int
    x: BufferName
    out: BufferName
    weight: WeightName
    bias: WeightName | None
    kernel: int
