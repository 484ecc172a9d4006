"""What an op of a plan has to read, and to multiply, in a step of a given size: its floor.

:func:`demand` says what an op asks for in steps of any size. Ops of equal layers ask for the same,
so that a plan of a thousand ops has a dozen demands, and :meth:`PlanCosts.of` counts them. Sizing,
simulation and benchmarks share them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE, Chunk, Window, is_coded
from penstock.interface.step import Int32s, StepInput
from penstock.plan.ops import (
    AddPositions,
    Attention,
    Embed,
    ExpertLinear,
    GatedDelta,
    HeadLinear,
    KvWrite,
    Linear,
    Op,
    RopeWrite,
    Rows,
    SelectiveScan,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.quant import BlockScheme

Arithmetic = Literal["f32", "bf16", "int8"]
"""Whose peak bounds an op's products: those of float32, of bfloat16, or of 8-bit integers."""

Work = Literal["product", "attention", "cache", "state", "rows"]
"""What an op does: multiplies by weights, attends, writes keys and values, advances states of
sequences, or works row by row."""


@dataclass(frozen=True, eq=False)
class StepSize:
    """The part of a step that its costs depend on. Two are the same only if they are one object,
    so that what was computed of one can be kept by it."""

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

    @property
    def sequences(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class OpCost:
    """Bytes of weights, and of keys and values, that an op reads or writes, and operations of its
    products, a multiply-add being two. Activations, which lie in caches, are not counted."""

    num_bytes: int = 0
    operations: int = 0
    arithmetic: Arithmetic = "f32"


@dataclass(frozen=True)
class Demand:
    """What ops of one kind and shape ask for, in steps of any size."""

    work: Work
    rows: Rows = Rows.TOKENS
    """The rows that it computes; it costs nothing in steps that have none."""
    weight_bytes: float = 0.0
    """Bytes of all its weights; of experts, of all of them."""
    experts: int = 0
    """Number of experts among which each token is sent to ``chosen``; 0 if there are none."""
    chosen: int = 0
    multiply_adds: int = 0
    """Multiply-adds of a row, or of a row and each token that it sees."""
    arithmetic: Arithmetic = "f32"
    form: str = "float"
    """What its weights, or keys and values, are kept in: ``int4``, ``int8``, ``bfloat16``, ..."""
    token_bytes: int = 0
    """Bytes in the cache of each token that is read or written."""
    kv_heads: int = 1
    """The number of ranks that can share what is cached: KV heads, or 1 with latents."""
    window: Window | None = None
    """What a row sees; None: all of its sequence."""
    state_bytes: int = 0
    """Bytes of a sequence's state, which is read and written once in a step."""
    normed: bool = False
    """Whether it norms heads before it rotates and caches them."""
    columns: int = 0
    """Columns of all that it reads and writes in each row: activations."""

    def cost(self, size: StepSize) -> OpCost:
        """The cost in a step of this size."""
        if self.work == "attention":
            pairs = int(seen(size.positions + 1, self.window).sum(dtype=np.int64))
            read = int(seen(size.context_lens, self.window).sum(dtype=np.int64))
            return OpCost(self.token_bytes * read, 2 * self.multiply_adds * pairs, self.arithmetic)
        count = self.count(size)
        if self.work == "cache":
            return OpCost(self.token_bytes * count)
        if self.work == "product" and count == 0:
            return OpCost()
        moved = round(self.weight_bytes * self.touched(count // self.rows.times))
        moved += 2 * self.state_bytes * size.sequences
        return OpCost(moved, 2 * self.multiply_adds * count, self.arithmetic)

    def count(self, size: StepSize) -> int:
        """Rows that it computes in a step of this size."""
        return self.rows.count(size.tokens, size.selected, size.logits)

    def touched(self, tokens: int) -> float:
        """The share of its weights that so many tokens need; of more than one, what is to be
        expected if each token's experts are drawn evenly and independently."""
        if self.experts == 0:
            return 1.0
        return 1 - (1 - self.chosen / self.experts) ** tokens


@dataclass(frozen=True)
class PlanCosts:
    """The demands of all ops of a plan, each with how many ops have it."""

    counts: tuple[tuple[Demand, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> PlanCosts:
        return cls(tuple(Counter(demand(plan, op) for op in plan.ops).items()))

    @property
    def num_ops(self) -> int:
        return sum(count for _, count in self.counts)


def demand(plan: Plan, op: Op) -> Demand:
    """What ``op`` asks for, whatever the size of the step."""
    made = _demand(plan, op)
    columns = sum(plan.buffers[name].cols for name in {*op.reads, *op.writes})
    return replace(made, columns=columns)


def _demand(plan: Plan, op: Op) -> Demand:
    if isinstance(op, Linear | ExpertLinear | HeadLinear):
        experts = 0
        if isinstance(op, ExpertLinear):
            experts = plan.weights[op.parts[0].weight].shape[0]
        scheme = None if isinstance(op, HeadLinear) else op.scheme
        return Demand(
            "product",
            rows=plan.buffers[op.out].rows,
            weight_bytes=sum(_stored_bytes(plan, op).values()),
            experts=experts,
            chosen=plan.buffers[op.ids].cols if isinstance(op, ExpertLinear) else 0,
            multiply_adds=multiply_adds(op),
            arithmetic=_arithmetic(plan, op),
            form=str(scheme or plan.weight_dtype),
        )
    if isinstance(op, Attention):
        kind: Arithmetic = "bf16" if plan.kv_dtype == "bfloat16" else "f32"
        return Demand(
            "attention",
            multiply_adds=op.heads * (op.head_dim + (op.value_dim or op.head_dim)),
            arithmetic="int8" if is_coded(plan.kv_dtype) else kind,
            form=plan.kv_dtype,
            token_bytes=_token_bytes(plan, op.layer),
            kv_heads=op.kv_heads if op.value_dim is None else 1,
            window=op.window if op.chunk is None else Chunk(op.chunk),
        )
    if isinstance(op, KvWrite | RopeWrite):
        return Demand(
            "cache",
            form=plan.kv_dtype,
            token_bytes=_token_bytes(plan, op.layer),
            kv_heads=plan.kv_layers[op.layer].kv_heads,
            normed=isinstance(op, RopeWrite) and bool(op.weights),
        )
    if isinstance(op, GatedDelta | SelectiveScan):
        kept = plan.state_layers[op.layer].num_bytes(plan.state_dtype, 0)
        return Demand("state", state_bytes=kept, weight_bytes=sum(_stored_bytes(plan, op).values()))
    rows = plan.buffers[op.writes[0]].rows if op.writes else Rows.TOKENS
    if isinstance(op, Embed | AddPositions):
        return Demand("rows", rows=rows)  # rows of a table, as few as activations
    return Demand("rows", rows=rows, weight_bytes=sum(_stored_bytes(plan, op).values()))


def op_cost(plan: Plan, op: Op, size: StepSize) -> OpCost:
    """The cost of ``op`` in a step of this size."""
    return demand(plan, op).cost(size)


def weight_bytes_of(plan: Plan, op: Op, rows: int) -> dict[WeightName, float]:
    """Bytes of each weight that ``op`` reads for ``rows`` tokens.

    Of experts, those that one token has, and of more tokens as many as are to be expected if
    each token's are drawn evenly and independently.
    """
    sizes = _stored_bytes(plan, op)
    if isinstance(op, ExpertLinear):
        touched = demand(plan, op).touched(rows)
        sizes = {name: size * touched for name, size in sizes.items()}
    return sizes


def _stored_bytes(plan: Plan, op: Op) -> dict[WeightName, float]:
    """Bytes of each weight of ``op``; of experts, of all of them."""
    element = 4 if plan.weight_dtype == "float32" else 2
    sizes = {name: float(math.prod(plan.weights[name].shape) * element) for name in op.weights}
    if isinstance(op, Linear | ExpertLinear) and op.scheme is not None:
        experts = 1
        if isinstance(op, ExpertLinear):
            experts = plan.weights[op.parts[0].weight].shape[0]
        for part in op.parts:
            sizes[part.weight] = op.scheme.nbytes(experts * part.n, op.k)
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


def _token_bytes(plan: Plan, layer: int) -> int:
    return plan.kv_layers[layer].block_bytes(plan.kv_dtype) // BLOCK_SIZE


def _arithmetic(plan: Plan, op: Linear | ExpertLinear | HeadLinear) -> Arithmetic:
    scheme = None if isinstance(op, HeadLinear) or op.weight_only else op.scheme
    if scheme is not None and (not isinstance(scheme, BlockScheme) or scheme.whole):
        return "int8"
    return "f32" if plan.buffers[op.x].element == "float32" else "bf16"
