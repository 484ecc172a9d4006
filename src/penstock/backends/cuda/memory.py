"""Computes the GPU memory that a model takes, before any of it is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch

from penstock.backends.cuda.adapters import AdapterTables
from penstock.backends.cuda.attention import AttentionKernel
from penstock.backends.cuda.bind import sampler_sizes, step_bounds
from penstock.backends.cuda.executor import buffer_capacity
from penstock.backends.cuda.expert_matrix import expert_matrix
from penstock.backends.cuda.gathers import Exchange
from penstock.backends.cuda.kernels.rows import Argmax
from penstock.backends.cuda.mixtures import SortedRows
from penstock.backends.cuda.op_storage import (
    Geometry,
    attention_geometry,
    attention_kernel,
    block_table,
    group_table,
    head_matrix,
    linear_matrix,
)
from penstock.backends.cuda.step import StepBuffer
from penstock.backends.cuda.workspace import Workspace
from penstock.dtypes import QuantizationName
from penstock.errors import ConfigError
from penstock.interface.budget import Budget
from penstock.interface.executor import Limits
from penstock.plan import ops
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan
from penstock.plan.tied import tied_product
from penstock.quant.choice import choose
from penstock.quant.scheme import BlockScheme, GroupScheme, Quantization

RESERVE: Final = 1 << 30
"""Bytes left for what is not reckoned: code of kernels, CUDA graphs, penalties, libraries, weights
on their way, and memory lost between allocations."""
DRAFT_RESERVE: Final = RESERVE // 4
"""The same for a model that drafts: its graphs, and kernels for its shapes."""

RANKS_RESERVE: Final = RESERVE // 2
"""The same for what NCCL keeps on each GPU of several ranks; no such machine has measured it."""

_NOWHERE = torch.device("meta")
"""Tensors of it have a size and no memory."""


@dataclass(frozen=True)
class Needs:
    """Bytes needed on the device, without the KV cache."""

    weights: int
    activations: int
    tables_and_scratch: int
    adapters: int = 0
    """Those of all slots, and what is between the products of one."""
    copies: int = 0
    """Blocks on their way to tiers below the KV cache, and back."""
    draft: Needs | None = None
    """The needs of the draft model or heads, if there are any."""
    shared: bool = False
    """Whether these are the needs of one of several ranks."""

    @property
    def reserve(self) -> int:
        """Bytes that are kept free."""
        draft = 0 if self.draft is None else DRAFT_RESERVE
        return RESERVE + draft + (RANKS_RESERVE if self.shared else 0)

    @property
    def total(self) -> int:
        return self._own + (0 if self.draft is None else self.draft._own) + self.reserve

    @property
    def _own(self) -> int:
        own = self.weights + self.activations + self.tables_and_scratch
        return own + self.adapters + self.copies

    def __str__(self) -> str:
        draft = "" if self.draft is None else f"{gib(self.draft._own)} of the same for the draft, "
        adapters = f"{gib(self.adapters)} of adapters, " if self.adapters else ""
        copies = f"{gib(self.copies)} of blocks on their way, " if self.copies else ""
        return (
            f"{gib(self.weights)} of weights, {gib(self.activations)} of activations, "
            f"{gib(self.tables_and_scratch)} of tables and scratch, {adapters}{copies}{draft}and "
            f"{gib(self.reserve)} kept free for kernels and CUDA graphs"
        )


def gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def needs(plan: Plan, limits: Limits) -> Needs:
    """Return what ``cuda.bind.bind`` allocates for this fused plan, besides the cache."""
    shapes = {name: weight.shape for name, weight in plan.weights.items()}
    element = 4 if plan.weight_dtype == "float32" else 2
    workspace = Workspace(_NOWHERE)
    weights = scratch = ranks = 0
    geometries: dict[Geometry, AttentionKernel] = {}
    for op in plan.ops:
        if isinstance(op, ops.Embed):
            if tied_product(plan, op) is not None:
                pass
            elif isinstance(op.scheme, BlockScheme):
                weights += block_table(op, plan, op.scheme, _NOWHERE).nbytes
            elif isinstance(op.scheme, GroupScheme):
                weights += group_table(op, plan, op.scheme, workspace).nbytes
            else:
                weights += math.prod(shapes[op.weight]) * element
        elif isinstance(op, ops.Linear):
            biases = sum(part.n for part in op.parts) if any(p.bias for p in op.parts) else 0
            weights += linear_matrix(op, plan, limits, workspace).nbytes + biases * 4
        elif isinstance(op, ops.HeadLinear):
            weights += head_matrix(op, plan, limits, workspace).nbytes
        elif isinstance(op, ops.ExpertLinear):
            matrix = expert_matrix(op, plan, limits, workspace)
            biased = any(part.bias for part in op.parts)
            rows = matrix.shape.experts * matrix.shape.weight_rows
            weights += matrix.nbytes + (rows * 4 if biased else 0)
        elif isinstance(op, ops.Attention):
            weights += 4 * op.heads * sum(each is not None for each in (op.slopes, op.sinks))
            geometry = attention_geometry(op)
            if geometry not in geometries:
                geometries[geometry] = attention_kernel(
                    op, plan, limits, _NOWHERE, workspace.capability
                )
        elif isinstance(op, ops.Argmax):
            scratch += Argmax.scratch_bytes(limits.max_logit_rows, plan.buffers[op.x].cols)
        elif isinstance(op, ops.AllGather | ops.GatherToFirst):
            ranks = len(op.ranks)
        else:
            weights += sum(math.prod(shapes[name]) * 4 for name in op.weights)
    if ranks:
        scratch += Exchange.nbytes(plan, limits, ranks)
    scratch += sampler_sizes(plan, limits).bytes + SortedRows(plan, limits, _NOWHERE).nbytes
    scratch += workspace.nbytes + sum(kernel.scratch_bytes for kernel in geometries.values())
    adapters = AdapterTables.of(plan, limits, _NOWHERE)
    lists = None if adapters is None else adapters.rows
    capacity = buffer_capacity(step_bounds(plan, limits), list(geometries.values()), lists)
    tables = sum(plan.max_positions * rope.dim * 4 for rope in plan.ropes)
    scales = {op.scale for op in plan.ops if isinstance(op, ops.ScaleByPosition)}
    tables += sum(scale.factors(plan.max_positions).nbytes for scale in scales)
    return Needs(
        weights=weights,
        activations=plan_memory(
            plan, limits.max_tokens, limits.max_logit_rows, limits.max_selected_rows
        ).total_bytes,
        tables_and_scratch=tables + scratch + StepBuffer.nbytes(capacity),
        adapters=0 if adapters is None else adapters.nbytes,
        shared=ranks > 0,
    )


def divide(
    plan: Plan,
    plan_with: Callable[[Quantization], Plan],
    limits: Limits,
    free: int,
    asked: int | None,
    wanted: int,
    draft: Needs | None = None,
    copies: int = 0,
) -> Budget:
    """What the KV cache gets of ``free`` bytes beside what the fused ``plan`` needs.

    ``plan_with`` makes the plan of the same model for weights quantized otherwise. ``asked`` is the
    user's number of bytes; without one the cache gets what is left, at most the ``wanted`` bytes
    that all sequences could fill. ``draft``: what a model takes that drafts; its cache is part of
    the numbers of bytes. ``copies``: what blocks take that are on their way to tiers below the
    cache. Raises ConfigError, with the arithmetic and what would fit, where it does not.
    """
    need = replace(needs(plan, limits), draft=draft, copies=copies)
    left = free - need.total
    if left <= 0 or (asked is not None and asked > left):
        cache = "" if asked is None else f", and {gib(asked)} of KV cache"
        fits = [f"kv_cache_bytes of at most {left:,}"] if asked is not None and left > 0 else []
        fits += _smaller(plan_with, need, limits, free - (asked or 0))
        if need.activations > RESERVE:
            fits.append("less max_num_batched_tokens")
        if need.adapters > RESERVE:
            fits.append("fewer max_loras, or a lower max_lora_rank")
        if draft is not None and replace(need, draft=None).total < free - (asked or 0):
            fits.append("no draft model (speculative ngram needs none)")
        helps = f"what helps: {', or '.join(fits)}" if fits else "use a GPU with more memory"
        raise ConfigError(f"the GPU has {gib(free)} free, too little for {need}{cache}; {helps}")
    if asked is not None:
        return Budget(need.weights, asked, "as asked")
    if wanted <= left:
        return Budget(need.weights, wanted, "what all sequences can fill")
    return Budget(need.weights, left, f"what is left of {gib(free)} beside {need}")


def _smaller(
    plan_with: Callable[[Quantization], Plan], need: Needs, limits: Limits, free: int
) -> list[str]:
    """Quantizations with which the model would fit in ``free`` bytes."""
    found = []
    names: tuple[QuantizationName, ...] = ("int8", "int4")
    for name in names:
        plan = plan_with(choose(name, None, True, activations=False, window_columns=32))
        other = replace(needs(plan, limits), draft=need.draft, copies=need.copies)
        if other.weights < need.weights and other.total < free:
            found.append(f"quantization {name} ({gib(other.weights)} of weights)")
    return found
