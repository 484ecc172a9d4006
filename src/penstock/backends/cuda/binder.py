"""Turns a plan's ops into launches on a GPU, with their matrices and scratch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from penstock.backends.cuda.adapters import ADAPTER_OPS, AdapterTables
from penstock.backends.cuda.attention import AttentionKernel, Scores
from penstock.backends.cuda.block_matrix import BlockTable
from penstock.backends.cuda.cache import Cache, LayerCache, allocate
from penstock.backends.cuda.capability import Capability
from penstock.backends.cuda.gathers import GATHER_OPS, Exchange
from penstock.backends.cuda.group import Group
from penstock.backends.cuda.head_matrix import HeadMatrix
from penstock.backends.cuda.kernels.embed import embed
from penstock.backends.cuda.kernels.embed_blocks import embed_blocks
from penstock.backends.cuda.kernels.embed_groups import embed_groups
from penstock.backends.cuda.kernels.norm import MAX_COLS, add_norm
from penstock.backends.cuda.kernels.rope_write import rope_write
from penstock.backends.cuda.kernels.rows import Argmax, select_rows
from penstock.backends.cuda.matrix import FloatMatrix, GroupMatrix, Matrix
from penstock.backends.cuda.matrix_fill import fill_rows, fill_table
from penstock.backends.cuda.mixtures import EXPERT_OPS, Mixtures
from penstock.backends.cuda.op_storage import (
    Geometry,
    attention_geometry,
    attention_kernel,
    block_table,
    group_table,
    head_matrix,
    linear_matrix,
)
from penstock.backends.cuda.pages import page_layers
from penstock.backends.cuda.program import Launch, Views
from penstock.backends.cuda.small_ops import SMALL_OPS
from penstock.backends.cuda.step import DeviceStep
from penstock.backends.cuda.warm_up import Tiled
from penstock.backends.cuda.weights import TORCH_DTYPES, Uploader, dtype_of
from penstock.backends.cuda.workspace import Workspace
from penstock.backends.fills import Fill
from penstock.interface.executor import Limits
from penstock.interface.weights import WeightValue
from penstock.models.rope import rope_tables
from penstock.models.spec import PositionScale
from penstock.plan import ops
from penstock.plan.plan import Plan
from penstock.plan.tied import tied_product
from penstock.quant import BlockScheme, GroupScheme


class Binder:
    """Turns ops into launches and reserves what their weights take, for later filling.

    Nothing that it makes refers back to it, so that the executor alone decides how long memory of
    the device is held.
    """

    def __init__(
        self,
        plan: Plan,
        limits: Limits,
        device: torch.device,
        capability: Capability,
        group: Group | None = None,
    ) -> None:
        """``group``: the ranks of which ``plan`` is one's."""
        self.launches: list[Launch] = []
        self.fills: list[Fill] = []
        self.attention: list[AttentionKernel] = []
        """One of each geometry; a step has a work list for each."""
        self.winners: Tensor
        """``Argmax.winners`` of the plan's result."""
        self.caches = allocate(page_layers(plan), plan.kv_dtype, limits.num_blocks, device)
        """One of each place in a page, which the layers of all groups there share."""
        self.plan = plan
        self._limits = limits
        self._device = device
        self._shapes = {name: weight.shape for name, weight in plan.weights.items()}
        self._upload = Uploader(device)
        self._workspace = Workspace(device, capability)
        self.mixtures = Mixtures(plan, limits, self._upload, self._workspace)
        self.adapters = AdapterTables.of(plan, limits, device)
        self._matrices: dict[ops.BufferName, Matrix] = {}
        self._head_matrices: list[HeadMatrix] = []
        self._ropes: dict[int, tuple[Tensor, Tensor]] = {}
        self._factors: dict[PositionScale, Tensor] = {}
        self._geometries: dict[Geometry, int] = {}
        self._exchange = None if group is None else Exchange.of(plan, limits, group, device)

    @property
    def matrices(self) -> Collection[Tiled]:
        return [*self._matrices.values(), *self._head_matrices, *self.mixtures.matrices]

    @property
    def exchange(self) -> Exchange:
        """What ranks meet in. Raises ValueError where there are none."""
        if self._exchange is None:
            raise ValueError("the plan is one rank's, and there is no group of ranks")
        return self._exchange

    def append(self, op: ops.Op) -> None:
        """Reserve what ``op`` needs and add what launches it. Raises ValueError where no kernel
        does what the op asks."""
        append = self._APPEND.get(type(op))
        if append is None:
            raise ValueError(f"op {op.kind} has no GPU kernel")
        append(self, op)

    def _embed(self, op: ops.Embed) -> None:
        tied = tied_product(self.plan, op)
        if isinstance(op.scheme, BlockScheme):
            blocks = self._block_table(op, op.scheme) if tied is None else self._matrix(tied)
            self.launches.append(
                lambda views, step: embed_blocks(step.token_ids, blocks.weights, views[op.out])
            )
            return
        if isinstance(op.scheme, GroupScheme):
            groups = self._group_table(op, op.scheme) if tied is None else self._matrix(tied)
            self.launches.append(
                lambda views, step: embed_groups(step.token_ids, groups.weights, views[op.out])
            )
            return
        if tied is None:
            table = self.weight(op.weight, TORCH_DTYPES[self.plan.weight_dtype])
        else:
            matrix = self._matrix(tied)
            assert isinstance(matrix, FloatMatrix)
            table = matrix.weights.w[:, : tied.k]

        def launch(views: Views, step: DeviceStep) -> None:
            embed(step.token_ids, table, views[op.out])

        self.launches.append(launch)

    def _block_table(self, op: ops.Embed, scheme: BlockScheme) -> BlockTable:
        """Make room for a table that no product reads."""
        table = block_table(op, self.plan, scheme, self._device)
        put = partial(fill_table, self._upload, table, op.weight)
        self.fills.append(Fill(op.weight, put))
        return table

    def _group_table(self, op: ops.Embed, scheme: GroupScheme) -> GroupMatrix:
        """Likewise, of a table in groups."""
        table = group_table(op, self.plan, scheme, self._workspace)
        self.fills.append(Fill(op.weight, partial(fill_rows, self._upload, table, 0, op.weight)))
        return table

    def _add_norm(self, op: ops.AddNorm) -> None:
        weight = self.norm_weight(op.weight, self.plan.buffers[op.out].cols)

        def launch(views: Views, step: DeviceStep) -> None:
            delta = None if op.delta is None else views[op.delta]
            add_norm(views[op.residual], delta, weight, views[op.out], op.eps)

        self.launches.append(launch)

    def _linear(self, op: ops.Linear) -> None:
        matrix, bias = self._matrix(op), self._bias(op)
        buffers = self.plan.buffers
        narrows = buffers[op.x].rows != buffers[op.out].rows

        def launch(views: Views, step: DeviceStep) -> None:
            x, out = views[op.x], views[op.out]
            matrix.product(x[: len(out)] if narrows else x, out, bias, op.gated)

        self.launches.append(launch)

    def _matrix(self, op: ops.Linear) -> Matrix:
        if op.out not in self._matrices:
            matrix = linear_matrix(op, self.plan, self._limits, self._workspace)
            self._matrices[op.out] = matrix
            first = 0
            for part in op.parts:
                put = partial(fill_rows, self._upload, matrix, first, part.weight)
                self.fills.append(Fill(part.weight, put))
                first += part.n
        return self._matrices[op.out]

    def _bias(self, op: ops.Linear) -> Tensor | None:
        """The parts' biases joined, zeros where one has none; None if none has any."""
        if all(part.bias is None for part in op.parts):
            return None
        joined = torch.zeros(
            sum(part.n for part in op.parts), dtype=torch.float32, device=self._device
        )
        first = 0
        for part in op.parts:
            if part.bias is not None:
                self._fill(part.bias, joined[first : first + part.n])
            first += part.n
        return joined

    def _head_linear(self, op: ops.HeadLinear) -> None:
        matrix = head_matrix(op, self.plan, self._limits, self._workspace)
        self._head_matrices.append(matrix)
        self.fills.append(Fill(op.weight, partial(_fill_heads, self._upload, matrix)))
        self.launches.append(lambda views, step: matrix.product(views[op.x], views[op.out]))

    def _rope_write(self, op: ops.RopeWrite) -> None:
        rope, interleaved = self.rope(op.rope)
        cache, group = self.cache_of(op.layer)
        assert isinstance(cache, LayerCache)  # latents have a write of their own
        norms = None
        if op.q_norm is not None and op.k_norm is not None:
            norms = self.weight(op.q_norm), self.weight(op.k_norm)

        def launch(views: Views, step: DeviceStep) -> None:
            qkv, q, slots = views[op.qkv], views[op.q], step.groups[group].slots
            rope_write(qkv, q, cache, step.positions, slots, rope, norms, op.eps, interleaved)

        self.launches.append(launch)

    def _attention(self, op: ops.Attention) -> None:
        geometry = attention_geometry(op)
        if geometry not in self._geometries:
            self._geometries[geometry] = len(self.attention)
            kernel = attention_kernel(
                op, self.plan, self._limits, self._device, self._workspace.capability
            )
            self.attention.append(kernel)
        index = self._geometries[geometry]
        kernel, (cache, group) = self.attention[index], self.cache_of(op.layer)
        slopes = None
        if op.slopes is not None:
            slopes = self._upload.tensor(np.asarray(op.slopes, np.float32), torch.float32)
        sinks = None if op.sinks is None else self.weight(op.sinks)
        scores = Scores(op.softcap, slopes, sinks, op.slope_factor)

        def launch(views: Views, step: DeviceStep) -> None:
            tables, work = step.groups[group], step.work[index]
            kernel.run(views[op.q], views[op.out], cache, tables, work, step.tree, scores)

        self.launches.append(launch)

    def _select_rows(self, op: ops.SelectRows) -> None:
        def launch(views: Views, step: DeviceStep) -> None:
            x, out = views[op.x], views[op.out]
            select_rows(x, step.selected_rows, out[:, op.first : op.first + x.shape[1]])

        self.launches.append(launch)

    def _argmax(self, op: ops.Argmax) -> None:
        cols = self.plan.buffers[op.x].cols
        argmax = Argmax(self._limits.max_logit_rows, cols, self._device)
        if op.out == self.plan.argmax:
            self.winners = argmax.winners

        def launch(views: Views, step: DeviceStep) -> None:
            argmax.run(views[op.x], views[op.out])

        self.launches.append(launch)

    def cache_of(self, layer: int) -> tuple[Cache, int]:
        """Return a layer's cache, and the group of a step's tables that addresses it."""
        place = self.plan.kv_groups.places[layer]
        return self.caches[place.index], place.group

    def rope(self, index: int) -> tuple[tuple[Tensor, Tensor], bool]:
        """Cosines and sines of ``Plan.ropes[index]``, and whether neighbours turn together."""
        if index not in self._ropes:
            cos, sin = rope_tables(self.plan.ropes[index], self.plan.max_positions)
            put = self._upload.tensor
            self._ropes[index] = (put(cos, torch.float32), put(sin, torch.float32))
        return self._ropes[index], self.plan.ropes[index].interleaved

    def factors(self, scale: PositionScale) -> Tensor:
        """The factors of all positions of the plan, which layers share."""
        if scale not in self._factors:
            factors = scale.factors(self.plan.max_positions)
            self._factors[scale] = self._upload.tensor(factors, torch.float32)
        return self._factors[scale]

    def norm_weight(self, name: ops.WeightName | None, cols: int) -> Tensor | None:
        """Room for the weight of a norm of whole rows of ``cols``, if it has one. ValueError where
        a kernel has not the registers for a row."""
        if cols > MAX_COLS:
            raise ValueError(f"a hidden size of {cols} exceeds {MAX_COLS}")
        return None if name is None else self.weight(name)

    def weight(self, name: ops.WeightName, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the tensor of a weight, which is filled later."""
        tensor = torch.empty(self._shapes[name], dtype=dtype, device=self._device)
        self._fill(name, tensor)
        return tensor

    def _fill(self, name: ops.WeightName, target: Tensor) -> None:
        self.fills.append(Fill(name, partial(self._upload.put, target=target)))

    _APPEND: ClassVar[Mapping[type[ops.Op], Callable[[Binder, Any], None]]] = {
        ops.Embed: _embed,
        ops.AddNorm: _add_norm,
        ops.Linear: _linear,
        ops.HeadLinear: _head_linear,
        ops.RopeWrite: _rope_write,
        ops.Attention: _attention,
        ops.SelectRows: _select_rows,
        ops.Argmax: _argmax,
        **SMALL_OPS,
        **EXPERT_OPS,
        **ADAPTER_OPS,
        **GATHER_OPS,
    }


def _fill_heads(upload: Uploader, matrix: HeadMatrix, value: WeightValue) -> None:
    assert isinstance(value, np.ndarray)  # HeadLinear is never quantized
    matrix.fill(upload.tensor(value, dtype_of(value)))
