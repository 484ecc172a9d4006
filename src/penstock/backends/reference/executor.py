"""The oracle: every op of a plan in NumPy, primitive and fused alike, rounding where buffers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.adapters import AdapterValues
from penstock.backends.reference.blocks import ReferenceBlocks
from penstock.backends.reference.cache import RowStore, Store, layer_stores
from penstock.backends.reference.convolution import convolve
from penstock.backends.reference.numerics import attend, gated, rms_norm, rotate
from penstock.backends.reference.products import F32, product
from penstock.backends.reference.row_ops import ROW_OPS, Values
from penstock.backends.reference.schemes import quantized_product, rounded
from penstock.backends.reference.states import States
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.collective import Collective
from penstock.interface.draft_tree import check_tree, path_rows, trunk_rows
from penstock.interface.executor import Limits
from penstock.interface.host_executor import HostExecutor
from penstock.interface.step import KvTables, StepInput, StepResult
from penstock.interface.weights import WeightSource
from penstock.models.rope import check_computable, positions_to_fill, rope_rows
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.quant import BlockTensor, GroupScheme, GroupTensor
from penstock.sampling.reference import NumpySampler


class ReferenceExecutor(HostExecutor):
    """Runs a plan op by op. Slow and plain; what every other backend is compared with.

    Weights are widened to float32 on load, activations are rounded where the plan's buffers are
    bfloat16, and the cache is kept in the plan's KV dtype. ``collective``: the group of ranks whose
    plan this is, where it was sharded.
    """

    def __init__(
        self,
        plan: Plan,
        weights: WeightSource,
        limits: Limits,
        collective: Collective | None = None,
    ) -> None:
        if collective is None and any(
            isinstance(op, ops.AllGather | ops.GatherToFirst) for op in plan.ops
        ):
            raise ValueError("the plan is one rank's of several; give the group of ranks, too")
        self._collective = collective
        self.num_blocks = limits.num_blocks
        self._plan = plan
        self._values = values = Values(plan, weights)
        self._weights, self._buffers, self._put = values.weights, values.buffers, values.put
        self._quantized = values.quantized
        for rope in plan.ropes:
            check_computable(rope, plan.max_positions)
        self._ropes: dict[int, tuple[F32, F32]] = {}
        columns = {
            each.layer: np.asarray(weights.get(each.name), np.float32).reshape(
                2, each.kv_heads, each.head_dim
            )
            for each in plan.key_columns
        }
        self._cache: list[tuple[Store, ...]] = [
            layer_stores(layer, plan.kv_dtype, limits.num_blocks, columns.get(number))
            for number, layer in enumerate(plan.kv_layers)
        ]
        self._states = States(plan, limits, values)
        self.adapters = None if plan.adapters is None else AdapterValues(plan, values)
        self._run: dict[type[ops.Op], Callable[[Any, StepInput], None]] = {
            ops.Embed: self._embed,
            ops.Linear: self._linear,
            ops.Attention: self._attention,
            ops.AllGather: self._all_gather,
            ops.GatherToFirst: self._gather_to_first,
            ops.SelectRows: self._select_rows,
            ops.Argmax: self._argmax,
            ops.Rope: self._rope,
            ops.KvWrite: self._kv_write,
            ops.RopeWrite: self._rope_write,
            ops.Features: self._features,
            ops.AddPositions: self._add_positions,
            ops.ScaleByPosition: self._scale_by_position,
            **self._states.ops,
            ops.ShortConv: self._short_conv,
            **({} if self.adapters is None else self.adapters.ops),
        }

    def run(self, step: StepInput) -> StepResult:
        if step.token_ids.min() < 0:  # NumPy would count from the end
            raise ValueError("a token of the step is a placeholder, and this executor knows none")
        check_tree(step)
        step.check_features(self._plan.feature_size)
        step.check_adapters(self._plan.adapters)
        self._states.begin(step)
        for store in chain.from_iterable(self._cache):
            for source, target in step.slot_moves:
                store.move_slot(source, target)
            for source, target in step.block_copies:
                store.copy_block(source, target)
        self._buffers.clear()
        with np.errstate(invalid="ignore", over="ignore"):
            for op in self._plan.ops:
                row_op = ROW_OPS.get(type(op))
                if row_op is not None:
                    row_op(self._values, op)
                else:
                    self._run[type(op)](op, step)
        plan, buffers = self._plan, self._buffers
        if plan.logits is None or plan.argmax is None or plan.hidden is None:
            return StepResult(
                logits=np.empty((0, 0), np.float32),
                argmax=np.empty(0, np.int32),
                leaving=tuple(buffers[name] for name in plan.leaving),
            )
        return StepResult(
            logits=buffers[plan.logits],
            argmax=buffers[plan.argmax][:, 0],
            hidden=buffers[plan.hidden],
            taps=None if plan.taps is None else buffers[plan.taps],
            more_logits=tuple(buffers[name] for name in plan.more_logits),
        )

    @cached_property
    def blocks(self) -> ReferenceBlocks:
        return ReferenceBlocks(self._plan, self._cache, self.num_blocks)

    @cached_property
    def sampler(self) -> NumpySampler:
        return NumpySampler()

    def close(self) -> None:
        self._buffers.clear()
        self._cache = []

    def _embed(self, op: ops.Embed, step: StepInput) -> None:
        table = None
        if op.scheme is not None:
            if isinstance(op.scheme, GroupScheme) and op.weight not in self._quantized:
                matrix = self._weights[op.weight]
                self._quantized[op.weight] = rounded(matrix, op.scheme, op.weight, False)
            table = self._quantized.get(op.weight)
        if isinstance(table, BlockTensor | GroupTensor):
            self._put(op.out, table.taken(step.token_ids).dequantize())
        else:
            self._put(op.out, self._weights[op.weight][step.token_ids])

    def _linear(self, op: ops.Linear, step: StepInput) -> None:
        x = self._buffers[op.x]
        if self._plan.buffers[op.out].rows == ops.Rows.LOGITS:
            x = x[: len(step.logit_rows)]
        outs = []
        for part in op.parts:
            y = self._product(x, part.weight, op)
            outs.append(y + self._weights[part.bias] if part.bias else y)
        if op.gated:
            self._put(op.out, gated(outs[0], outs[1], op.gated))
        else:
            self._put(op.out, np.concatenate(outs, axis=1))

    def _product(self, x: F32, weight: str, op: ops.Linear) -> F32:
        """``x @ W.T``; quantized weights are kept, as a tied embedding may be needed in both."""
        if op.scheme is None:
            return product(x, self._weights[weight])
        if weight not in self._quantized:
            matrix = self._weights[weight]
            self._quantized[weight] = rounded(matrix, op.scheme, weight, op.weight_only)
        return quantized_product(x, self._quantized[weight], op.weight_only)

    def _attention(self, op: ops.Attention, step: StepInput) -> None:
        q = self._buffers[op.q].reshape(step.num_tokens, op.heads, op.head_dim)
        out = np.empty((*q.shape[:2], op.value_dim or op.head_dim), np.float32)
        stores = self._cache[op.layer]
        tables = self._tables(op.layer, step)
        for s in range(step.num_sequences):
            rows = slice(step.query_starts[s], step.query_starts[s + 1])
            blocks = tables.block_ids[tables.block_starts[s] : tables.block_starts[s + 1]]
            slots = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)
            slots = slots[: step.context_lens[s]]
            for some, seen in _lines(step, s):
                keys, *values = (store.read(slots[seen]) for store in stores)
                out[rows][some] = attend(
                    q[rows][some],
                    keys,
                    values[0] if values else keys[..., : op.value_dim],
                    step.positions[rows][some],
                    op.scale,
                    op.window,
                    op.softcap,
                    op.slopes,
                    None if op.sinks is None else self._weights[op.sinks],
                    op.chunk,
                    op.slope_factor,
                )
        self._put(op.out, out.reshape(step.num_tokens, -1))

    def _tables(self, layer: int, step: StepInput) -> KvTables:
        return step.groups[self._plan.kv_groups.places[layer].group]

    def _all_gather(self, op: ops.AllGather, step: StepInput) -> None:
        assert self._collective is not None
        parts = self._collective.all_gather(self._buffers[op.x])
        self._buffers[op.out] = _whole(parts, op.ranks)

    def _gather_to_first(self, op: ops.GatherToFirst, step: StepInput) -> None:
        assert self._collective is not None
        parts = self._collective.gather_to_first(self._buffers[op.x])
        if op.out is not None and parts is not None:
            self._buffers[op.out] = _whole(parts, op.ranks)

    def _select_rows(self, op: ops.SelectRows, step: StepInput) -> None:
        rows = np.concatenate([step.logit_rows, step.hidden_rows])
        x, whole = self._buffers[op.x][rows], self._plan.buffers[op.out].cols
        if x.shape[1] == whole:
            self._buffers[op.out] = x
            return
        out = self._buffers.setdefault(op.out, np.zeros((len(x), whole), np.float32))
        out[:, op.first : op.first + x.shape[1]] = x

    def _argmax(self, op: ops.Argmax, step: StepInput) -> None:
        x = self._buffers[op.x]
        best = x.argmax(axis=1) if len(x) else np.zeros(0)
        self._buffers[op.out] = best.astype(np.int32)[:, None]

    def _rope(self, op: ops.Rope, step: StepInput) -> None:
        x = self._buffers[op.x]
        heads = x.reshape(len(x), -1, op.head_dim)
        self._put(op.out, self._rotated(heads, op.rope, step).reshape(x.shape))

    def _rotated(self, heads: F32, rope: int, step: StepInput) -> F32:
        cos, sin = (table[step.positions] for table in self._tables_of(rope, step))
        return rotate(heads, cos, sin, self._plan.ropes[rope].interleaved)

    def _tables_of(self, rope: int, step: StepInput) -> tuple[F32, F32]:
        """Cosine and sine of a rotation, as far as contexts have come."""
        filled = positions_to_fill(int(step.positions.max()) + 1, self._plan.max_positions)
        tables = self._ropes.get(rope)
        if tables is None or len(tables[0]) < filled:
            tables = self._ropes[rope] = rope_rows(self._plan.ropes[rope], 0, filled)
        return tables

    def _kv_write(self, op: ops.KvWrite, step: StepInput) -> None:
        for store, name in zip(self._cache[op.layer], op.reads, strict=True):
            shape = (step.num_tokens, op.kv_heads, op.head_dim)
            store.write(self._tables(op.layer, step).slots, self._buffers[name].reshape(shape))

    def _rope_write(self, op: ops.RopeWrite, step: StepInput) -> None:
        qkv = self._buffers[op.qkv].reshape(step.num_tokens, -1, op.head_dim)
        q, k, v = np.split(qkv, [op.heads, op.heads + op.kv_heads], axis=1)
        if op.q_norm is not None and op.k_norm is not None:
            q = rms_norm(q, self._weights[op.q_norm], op.eps)
            k = rms_norm(k, self._weights[op.k_norm], op.eps)
        self._put(op.q, self._rotated(q, op.rope, step).reshape(step.num_tokens, -1))
        keys, values = self._cache[op.layer]
        slots = self._tables(op.layer, step).slots
        keys.write(slots, self._rotated(k, op.rope, step))
        values.write(slots, v)

    def _short_conv(self, op: ops.ShortConv, step: StepInput) -> None:
        (store,) = self._cache[op.layer]
        assert isinstance(store, RowStore)
        bias = None if op.bias is None else self._weights[op.bias]
        tables = self._tables(op.layer, step)
        x, weight = self._buffers[op.x], self._weights[op.weight]
        self._put(op.out, convolve(x, weight, bias, store, tables, step))

    def _add_positions(self, op: ops.AddPositions, step: StepInput) -> None:
        rows = self._weights[op.weight][step.positions + op.offset]
        self._put(op.out, self._buffers[op.x] + rows)

    def _scale_by_position(self, op: ops.ScaleByPosition, step: StepInput) -> None:
        places = (step.positions + op.scale.offset) // op.scale.period
        factors = op.scale.factors(self._plan.max_positions)[places]
        self._put(op.out, self._buffers[op.x] * factors[:, None])

    def _features(self, op: ops.Features, step: StepInput) -> None:
        self._put(op.out, step.features[:, op.first : op.first + op.cols])


def _whole(parts: Sequence[F32], ranks: Sequence[tuple[int, int]]) -> F32:
    """The columns of all ranks, each in its place."""
    whole = np.empty((len(parts[0]), max(end for _, end in ranks)), parts[0].dtype)
    for (first, end), part in zip(ranks, parts, strict=True):
        whole[:, first:end] = part
    return whole


def _lines(step: StepInput, sequence: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Rows of a sequence that see one line of tokens, and where each position of it is cached.

    Rows count from the sequence's first in the step, places from the sequence's first token.
    """
    first, end = step.query_starts[sequence], step.query_starts[sequence + 1]
    start = int(step.context_lens[sequence] - (end - first))
    parents = step.tree_parents[first:end]
    trunk = trunk_rows(parents) if len(parents) else int(end - first)
    before = np.arange(start + trunk)
    if trunk:
        yield slice(0, trunk), before
    for row in range(trunk, end - first):
        yield (
            slice(row, row + 1),
            np.append(before, start + np.array(path_rows(parents, row, trunk))),
        )
