"""What an op of a plan has to read, and to multiply, in a step of a given size: its floor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE, Chunk, Window, is_coded
from penstock.interface.step import Int32s, StepInput
from penstock.plan.ops import (
    AddPositions,
    Attention,
    Embed,
    ExpertLinear,
    HeadLinear,
    KvWrite,
    Linear,
    Op,
    RopeWrite,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.quant import BlockScheme

Arithmetic = Literal["f32", "bf16", "int8"]
"""Whose peak bounds an op's products: those of float32, of bfloat16, or of 8-bit integers."""


@dataclass(frozen=True)
class StepSize:
    """The part of a step that its costs depend on."""

    tokens: int
    selected: int  # rows with logits, or whose hidden states are wanted
    logits: int
    context_lens: Int32s
    positions: Int32s

    @classmethod
    def of(cls, step: StepInput) -> StepSize:
        """The size of ``step``, whose arrays may change later."""
        rows = len(step.logit_rows)
        return cls(
            tokens=step.num_tokens,
            selected=rows + len(step.hidden_rows),
            logits=rows,
            context_lens=step.context_lens.copy(),
            positions=step.positions.copy(),
        )


@dataclass(frozen=True)
class OpCost:
    """Bytes of weights, and of keys and values, that an op reads or writes, and operations of its
    products, a multiply-add being two. Activations, which lie in caches, are not counted."""

    num_bytes: int = 0
    operations: int = 0
    arithmetic: Arithmetic = "f32"


def op_cost(plan: Plan, op: Op, size: StepSize) -> OpCost:
    """The cost of ``op`` in a step of this size."""
    if isinstance(op, Linear | ExpertLinear | HeadLinear):
        rows = plan.buffers[op.out].rows
        count = rows.count(size.tokens, size.selected, size.logits)
        if count == 0:
            return OpCost()
        weights = sum(weight_bytes_of(plan, op, count // rows.times).values())
        return OpCost(round(weights), count * multiply_adds(op) * 2, _arithmetic(plan, op))
    if isinstance(op, Attention):
        layer = plan.kv_layers[op.layer]
        window = op.window if op.chunk is None else Chunk(op.chunk)
        per_token = layer.block_bytes(plan.kv_dtype) // BLOCK_SIZE
        pairs = int(seen(size.positions + 1, window).sum(dtype=np.int64))
        components = op.head_dim + (op.value_dim or op.head_dim)
        kind: Arithmetic = "bf16" if plan.kv_dtype == "bfloat16" else "f32"
        return OpCost(
            per_token * int(seen(size.context_lens, window).sum(dtype=np.int64)),
            2 * op.heads * components * pairs,
            "int8" if is_coded(plan.kv_dtype) else kind,
        )
    if isinstance(op, KvWrite | RopeWrite):
        layer = plan.kv_layers[op.layer]
        return OpCost(size.tokens * layer.block_bytes(plan.kv_dtype) // BLOCK_SIZE)
    if isinstance(op, Embed | AddPositions):
        return OpCost()  # rows of a table, as few as activations
    return OpCost(round(sum(weight_bytes_of(plan, op, size.tokens).values())))


def weight_bytes_of(plan: Plan, op: Op, rows: int) -> dict[WeightName, float]:
    """Bytes of each weight that ``op`` reads for ``rows`` tokens.

    Of experts, those that one token has, and of more tokens as many as are to be expected if
    each token's are drawn evenly and independently.
    """
    element = 4 if plan.weight_dtype == "float32" else 2
    sizes = {name: float(math.prod(plan.weights[name].shape) * element) for name in op.weights}
    if isinstance(op, Linear | ExpertLinear) and op.scheme is not None:
        experts = 1
        if isinstance(op, ExpertLinear):
            experts = plan.weights[op.parts[0].weight].shape[0]
        for part in op.parts:
            sizes[part.weight] = op.scheme.nbytes(experts * part.n, op.k)
    if isinstance(op, ExpertLinear):
        experts = plan.weights[op.parts[0].weight].shape[0]
        touched = 1 - (1 - plan.buffers[op.ids].cols / experts) ** rows
        sizes = {name: size * touched for name, size in sizes.items()}
    return sizes


def multiply_adds(op: Linear | ExpertLinear | HeadLinear) -> int:
    """Multiply-adds for one output row."""
    if isinstance(op, HeadLinear):
        return op.heads * op.k * op.n
    return op.k * sum(part.n for part in op.parts)


def seen(lens: Int32s, window: Window | None) -> Int32s:
    """How many tokens the last of so many sees."""
    if window is None:
        return lens
    if isinstance(window, Chunk):
        return (lens - 1) % window.size + 1
    return np.minimum(lens, window)


def _arithmetic(plan: Plan, op: Linear | ExpertLinear | HeadLinear) -> Arithmetic:
    scheme = None if isinstance(op, HeadLinear) or op.weight_only else op.scheme
    if scheme is not None and (not isinstance(scheme, BlockScheme) or scheme.whole):
        return "int8"
    return "bf16" if plan.buffers[op.x].element == "bfloat16" else "f32"
