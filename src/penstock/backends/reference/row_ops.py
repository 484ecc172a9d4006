"""Ops whose rows each depend on the same row of other buffers, and on nothing else."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.experts import combine, expert_product, route, scale_rows
from penstock.backends.reference.numerics import (
    activate,
    as_bfloat16,
    gated,
    layer_norm,
    rms_norm,
    sigmoid,
    soft_cap,
)
from penstock.backends.reference.products import F32, product
from penstock.backends.reference.schemes import CanonicalTensor, quantized_product, rounded
from penstock.interface.weights import WeightSource, WeightValue
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.quant import QuantScheme


class Values:
    """The weights of a plan, widened to float32, and what its buffers hold in a step."""

    def __init__(self, plan: Plan, weights: WeightSource) -> None:
        self.plan = plan
        self.weights: dict[str, F32] = {}
        self.quantized: dict[str, CanonicalTensor] = {}
        """Weights that come quantized, and those that were, as products first read them."""
        self._experts: dict[str, list[F32 | CanonicalTensor]] = {}
        """The matrices of all experts, likewise."""
        experts = (op for op in plan.ops if isinstance(op, ops.ExpertLinear))
        stacks = {part.weight for op in experts for part in op.parts}
        for name, weight in plan.weights.items():
            if name in stacks:
                each = (weights.member(name, i) for i in range(weight.shape[0]))
                self._experts[name] = list(map(_widened, each))
                continue
            value = _widened(weights.get(name))
            if isinstance(value, CanonicalTensor):
                self.quantized[name] = value
            else:
                self.weights[name] = value
        self.buffers: dict[str, NDArray[Any]] = {}

    def experts(
        self, name: str, scheme: QuantScheme | None, weight_only: bool
    ) -> list[F32 | CanonicalTensor]:
        """The matrices of all experts of a stacked weight, rounded when they are first wanted."""
        each = self._experts[name]
        if scheme is not None and any(isinstance(matrix, np.ndarray) for matrix in each):
            each = [
                rounded(m, scheme, name, weight_only) if isinstance(m, np.ndarray) else m
                for m in each
            ]
            self._experts[name] = each
        return each

    def optional(self, name: str | None) -> F32 | None:
        """A weight that an op may have none of."""
        return None if name is None else self.weights[name]

    def put(self, name: str, value: F32) -> None:
        """Store a buffer, rounded to its element type."""
        element = self.plan.buffers[name].element
        if element == "bfloat16":
            value = as_bfloat16(value)
        elif element == "float16":
            with np.errstate(over="ignore"):  # to infinity, as everywhere
                value = value.astype(np.float16)
        self.buffers[name] = value.astype(np.float32)


def _widened(value: WeightValue) -> F32 | CanonicalTensor:
    return value if isinstance(value, CanonicalTensor) else np.asarray(value).astype(np.float32)


def _rms_norm(v: Values, op: ops.RmsNorm) -> None:
    v.put(op.out, rms_norm(v.buffers[op.x], v.optional(op.weight), op.eps))


def _layer_norm(v: Values, op: ops.LayerNorm) -> None:
    weight, bias = v.optional(op.weight), v.optional(op.bias)
    v.put(op.out, layer_norm(v.buffers[op.x], weight, bias, op.eps))


def _head_norm(v: Values, op: ops.HeadNorm) -> None:
    x = v.buffers[op.x]
    heads = x.reshape(len(x), -1, op.head_dim)
    weight, bias = v.optional(op.weight), v.optional(op.bias)
    if op.centered:
        normed = layer_norm(heads, weight, bias, op.eps)
    else:
        normed = rms_norm(heads, weight, op.eps)
    v.put(op.out, normed.reshape(x.shape))


def _gated_norm(v: Values, op: ops.GatedNorm) -> None:
    x, gate = v.buffers[op.x], activate(v.buffers[op.gate], "silu")
    weight = v.weights[op.weight]
    if op.gate_first:
        x = x * gate
    parts = x.reshape(len(x), x.shape[1] // op.size, op.size)  # of no rows, too
    normed = rms_norm(parts, None, op.eps).reshape(x.shape)
    normed = normed * (weight if op.each_part else np.tile(weight, x.shape[1] // op.size))
    v.put(op.out, normed if op.gate_first else normed * gate)


def _add_norm(v: Values, op: ops.AddNorm) -> None:
    if op.delta is not None:
        v.put(op.residual, v.buffers[op.residual] + v.buffers[op.delta])
    _rms_norm(v, ops.RmsNorm(op.residual, op.out, op.weight, op.eps))


def _scale(v: Values, op: ops.Scale) -> None:
    v.put(op.out, v.buffers[op.x] * np.float32(op.factor))


def _scale_by(v: Values, op: ops.ScaleBy) -> None:
    v.put(op.out, v.buffers[op.x] * v.weights[op.weight][0])


def _columns(v: Values, op: ops.Columns) -> None:
    count = v.plan.buffers[op.out].cols
    v.put(op.out, v.buffers[op.x][:, op.first : op.first + count])


def _soft_cap(v: Values, op: ops.SoftCap) -> None:
    v.put(op.out, soft_cap(v.buffers[op.x], op.cap))


def _xielu(v: Values, op: ops.Xielu) -> None:
    x, zero = v.buffers[op.x], np.float32(0)
    p, n, beta, eps = (v.weights[name][0] for name in (op.p, op.n, op.beta, op.eps))
    rising, falling = np.logaddexp(zero, p), beta + np.logaddexp(zero, n)
    with np.errstate(over="ignore", invalid="ignore"):
        below = (np.expm1(np.minimum(x, eps)) - x) * falling + beta * x
        v.put(op.out, np.where(x > 0, rising * x * x + beta * x, below))


def _clamp(v: Values, op: ops.Clamp) -> None:
    limit = np.float32(op.limit)
    v.put(op.out, np.clip(v.buffers[op.x], -limit, limit))


def _add(v: Values, op: ops.Add) -> None:
    v.put(op.out, v.buffers[op.x] + v.buffers[op.y])


def _gate(v: Values, op: ops.Gate) -> None:
    v.put(op.out, gated(v.buffers[op.gate], v.buffers[op.up], op.activation))


def _activate(v: Values, op: ops.Activate) -> None:
    v.put(op.out, activate(v.buffers[op.x], op.activation))


def _add_activated(v: Values, op: ops.AddActivated) -> None:
    v.put(op.out, v.buffers[op.x] + activate(v.buffers[op.y], op.activation))


def _join(v: Values, op: ops.Join) -> None:
    parts = [np.split(v.buffers[x], op.heads or 1, axis=1) for x in op.xs]
    columns = [part for head in zip(*parts, strict=True) for part in head]
    v.put(op.out, np.concatenate(columns, axis=1))


def _head_linear(v: Values, op: ops.HeadLinear) -> None:
    matrices = v.weights[op.weight]
    matrices = matrices.reshape(op.heads, -1, matrices.shape[1])
    if op.transposed:
        matrices = matrices.transpose(0, 2, 1)
    columns = np.split(v.buffers[op.x], op.heads, axis=1)
    outs = [product(x, matrix) for x, matrix in zip(columns, matrices, strict=True)]
    v.put(op.out, np.concatenate(outs, axis=1))


def _route(v: Values, op: ops.Route) -> None:
    top_k = v.plan.buffers[op.ids].cols
    bias, scale = v.optional(op.choice_bias), v.optional(op.share_scale)
    ids, shares = route(v.buffers[op.logits], top_k, op.routing, bias, scale)
    v.buffers[op.ids] = ids
    v.put(op.shares, shares)


def _expert_linear(v: Values, op: ops.ExpertLinear) -> None:
    x, ids = v.buffers[op.x], v.buffers[op.ids]
    biases = [v.optional(part.bias) for part in op.parts]
    multiply = (
        product if op.scheme is None else partial(quantized_product, weight_only=op.weight_only)
    )
    parts = [v.experts(part.weight, op.scheme, op.weight_only) for part in op.parts]
    v.put(op.out, expert_product(x, ids, parts, biases, op.gated, multiply))


def _scale_rows(v: Values, op: ops.ScaleRows) -> None:
    by = v.buffers[op.by]
    v.put(op.out, scale_rows(v.buffers[op.x], sigmoid(by) if op.sigmoid else by))


def _combine_experts(v: Values, op: ops.CombineExperts) -> None:
    top_k = v.plan.buffers[op.x].rows.times
    shares = None if op.shares is None else v.buffers[op.shares]
    v.put(op.out, combine(v.buffers[op.x], top_k, shares))


ROW_OPS: Final[ops.OpTable[Values]] = ops.op_table(
    ops.handles(ops.RmsNorm, _rms_norm),
    ops.handles(ops.LayerNorm, _layer_norm),
    ops.handles(ops.HeadNorm, _head_norm),
    ops.handles(ops.GatedNorm, _gated_norm),
    ops.handles(ops.AddNorm, _add_norm),
    ops.handles(ops.Scale, _scale),
    ops.handles(ops.ScaleBy, _scale_by),
    ops.handles(ops.Columns, _columns),
    ops.handles(ops.SoftCap, _soft_cap),
    ops.handles(ops.Clamp, _clamp),
    ops.handles(ops.Xielu, _xielu),
    ops.handles(ops.Add, _add),
    ops.handles(ops.Gate, _gate),
    ops.handles(ops.Activate, _activate),
    ops.handles(ops.AddActivated, _add_activated),
    ops.handles(ops.Join, _join),
    ops.handles(ops.HeadLinear, _head_linear),
    ops.handles(ops.Route, _route),
    ops.handles(ops.ExpertLinear, _expert_linear),
    ops.handles(ops.ScaleRows, _scale_rows),
    ops.handles(ops.CombineExperts, _combine_experts),
)
