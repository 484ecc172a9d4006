"""Launches of the ops of mixtures of experts: ``EXPERT_OPS`` lists them.

A layer's ``Route`` says which experts each token has. The first product that reads them sorts the
step's rows by expert, into memory that all layers share, and those behind it read that: a list of
tiles, made on the device, as long as it can be for so many tokens. So what is launched depends on
the number of tokens alone, as CUDA graphs need it, and the host never learns who was chosen. One
token by itself, whose experts have one row each, is not sorted.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.expert_matrix import ExpertMatrix, expert_matrix
from penstock.backends.cuda.kernels.dispatch import dispatch
from penstock.backends.cuda.kernels.expert_product import RowsByExpert
from penstock.backends.cuda.kernels.expert_rows import combine_experts, scale_rows
from penstock.backends.cuda.kernels.route import route
from penstock.backends.cuda.kernels.tiles import STEP, most_tiles
from penstock.backends.cuda.matrix_fill import fill_rows
from penstock.backends.cuda.program import Launch, Views
from penstock.backends.cuda.step import DeviceStep
from penstock.backends.cuda.weights import Uploader
from penstock.backends.cuda.workspace import Workspace
from penstock.backends.fills import Fill
from penstock.interface.executor import Limits
from penstock.plan import ops
from penstock.plan.plan import Plan

_LISTS = 2
"""The gated product's tiles may be lower than the other's."""


class SortedRows:
    """Device memory for the rows of a step by expert, and their tiles: of one layer at a time."""

    def __init__(self, plan: Plan, limits: Limits, device: torch.device) -> None:
        rows = tiles = 0
        most = (limits.max_tokens, limits.max_selected_rows, limits.max_logit_rows)
        for op in plan.ops:
            if isinstance(op, ops.ExpertLinear):
                ids = plan.buffers[op.ids]
                count = ids.rows.count(*most) * ids.cols
                experts = plan.weights[op.parts[0].weight].shape[0]
                rows = max(rows, count)
                tiles = max(tiles, most_tiles(count, experts, STEP))
        self.order = torch.empty(rows, dtype=torch.int32, device=device)
        self.tiles = torch.empty((_LISTS, tiles, 4), dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        return self.order.nbytes + self.tiles.nbytes


class Dispatch:
    """The sorting of one layer's rows, for the products that are then its ``readers``."""

    def __init__(self, ids: ops.BufferName, padded: bool, memory: SortedRows) -> None:
        """``padded``: rows are a step's tokens, whose slots say which are padding."""
        self.ids = ids
        self.readers: list[ExpertMatrix] = []
        self._padded, self._memory = padded, memory

    def serves(self, ids: ops.BufferName, experts: int) -> bool:
        """Return whether one more product may read it."""
        alike = self.ids == ids and self.readers[0].shape.experts == experts
        return alike and len(self.readers) < _LISTS

    def heights(self, tokens: int) -> tuple[int, ...]:
        """Return the rows of tiles that products of so many tokens take: one number, or two."""
        return tuple(dict.fromkeys(matrix.tile(tokens).rows for matrix in self.readers))

    def run(self, views: Views, step: DeviceStep) -> None:
        """Queue it."""
        ids = views[self.ids]
        if len(ids) > 1:
            slots = step.groups[0].slots if self._padded and step.groups else None
            experts, memory = self.readers[0].shape.experts, self._memory
            heights = self.heights(len(ids))
            dispatch(ids, slots, experts, heights, memory.order, memory.tiles)

    def rows(self, views: Views, reader: ExpertMatrix) -> RowsByExpert:
        """Return a step's rows as a product reads them."""
        ids = views[self.ids]
        index = 0
        if len(ids) > 1:
            index = self.heights(len(ids)).index(reader.tile(len(ids)).rows)
        return RowsByExpert(ids, self._memory.order, self._memory.tiles[index])


class Mixtures:
    """What a plan's mixtures of experts have on the device."""

    def __init__(self, plan: Plan, limits: Limits, upload: Uploader, workspace: Workspace) -> None:
        self.matrices: list[ExpertMatrix] = []
        self._plan, self._limits = plan, limits
        self._upload, self._workspace = upload, workspace
        self._memory = SortedRows(plan, limits, workspace.device)
        self._sorted: Dispatch | None = None
        """What the memory holds where the next op runs."""

    def matrix(self, op: ops.ExpertLinear, fills: list[Fill]) -> ExpertMatrix:
        """Make room for the matrices of all experts."""
        matrix = expert_matrix(op, self._plan, self._limits, self._workspace)
        self.matrices.append(matrix)
        for expert in range(matrix.shape.experts):
            first = matrix.first_row(expert)
            for part in op.parts:
                put = partial(fill_rows, self._upload, matrix.store, first, part.weight)
                fills.append(Fill(part.weight, put, expert))
                first += part.n
        return matrix

    def bias(self, op: ops.ExpertLinear, fills: list[Fill]) -> Tensor | None:
        """Make room for the parts' biases ``[experts, n of all parts]``, zeros where one has none;
        None if none has any."""
        named = [part.bias for part in op.parts if part.bias is not None]
        if not named:
            return None
        experts = self._plan.weights[named[0]].shape[0]
        width = sum(part.n for part in op.parts)
        shape, device = (experts, width), self._workspace.device
        joined = torch.zeros(shape, dtype=torch.float32, device=device)
        first = 0
        for part in op.parts:
            if part.bias is not None:
                columns = joined[:, first : first + part.n]
                fills.append(Fill(part.bias, partial(_fill_columns, self._upload, columns)))
            first += part.n
        return joined.view(-1)

    def dispatch(self, op: ops.ExpertLinear) -> tuple[Dispatch, bool]:
        """Return the sorting of the rows of ``op``, and whether it has to be run before it, as no
        op before has."""
        experts = self._plan.weights[op.parts[0].weight].shape[0]
        last = self._sorted
        if last is None or not last.serves(op.ids, experts):
            padded = self._plan.buffers[op.ids].rows.base == "T"
            self._sorted = Dispatch(op.ids, padded, self._memory)
            return self._sorted, True
        return last, False

    def forget(self, ids: ops.BufferName) -> None:
        """Others are chosen from here on: what was sorted by ``ids`` no longer is."""
        if self._sorted is not None and self._sorted.ids == ids:
            self._sorted = None


def _fill_columns(upload: Uploader, columns: Tensor, value: NDArray[Any]) -> None:
    columns.copy_(upload.tensor(value, torch.float32))


class Binder(Protocol):
    """The part of the binder that these ops use."""

    launches: list[Launch]
    fills: list[Fill]
    mixtures: Mixtures

    def weight(self, name: ops.WeightName, dtype: torch.dtype = ...) -> Tensor: ...


def _route(b: Binder, op: ops.Route) -> None:
    bias = None if op.choice_bias is None else b.weight(op.choice_bias)
    b.mixtures.forget(op.ids)

    def launch(views: Views, step: DeviceStep) -> None:
        route(views[op.logits], op.routing, bias, views[op.ids], views[op.shares])

    b.launches.append(launch)


def _expert_linear(b: Binder, op: ops.ExpertLinear) -> None:
    matrix, bias = b.mixtures.matrix(op, b.fills), b.mixtures.bias(op, b.fills)
    sorting, first = b.mixtures.dispatch(op)
    sorting.readers.append(matrix)

    def launch(views: Views, step: DeviceStep) -> None:
        if first:
            sorting.run(views, step)
        by_expert = sorting.rows(views, matrix)
        matrix.product(views[op.x], by_expert, views[op.out], bias, op.gated)

    b.launches.append(launch)


def _scale_rows(b: Binder, op: ops.ScaleRows) -> None:
    def launch(views: Views, step: DeviceStep) -> None:
        scale_rows(views[op.x], views[op.by], views[op.out], op.sigmoid)

    b.launches.append(launch)


def _combine_experts(b: Binder, op: ops.CombineExperts) -> None:
    def launch(views: Views, step: DeviceStep) -> None:
        shares = None if op.shares is None else views[op.shares]
        combine_experts(views[op.x], shares, views[op.out])

    b.launches.append(launch)


EXPERT_OPS: Final[ops.OpTable[Binder]] = ops.op_table(
    ops.handles(ops.Route, _route),
    ops.handles(ops.ExpertLinear, _expert_linear),
    ops.handles(ops.ScaleRows, _scale_rows),
    ops.handles(ops.CombineExperts, _combine_experts),
)
