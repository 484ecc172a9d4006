"""Adapters on a GPU: tables of all slots, the ops that read them, and what writes an adapter there.

The path of a request: its adapter's digest (``EngineRequest.adapter``) is an ``Adapter`` of the
``AdapterStore``, for which the scheduler finds a slot (``Residents``). ``StepRunner`` has it
written there by ``AdapterTables.write`` and submits a ``StepInput`` whose ``adapters`` name the
slot of each sequence. ``StepBounds`` checks these, ``AdapterRows`` makes of them lists of rows by
slot, which are sent with the step (``DeviceStep.adapter_lists``), and the launches of
``ADAPTER_OPS`` hand lists and tables to the kernels, op by op or from a graph.

Tables are where they are for good, so graphs read whatever was written last. A write is queued on
the stream of the steps: those before it still find what was there, and those behind it the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backends.cuda.adapter_rows import AdapterRows
from penstock.backends.cuda.failure import one_error
from penstock.backends.cuda.kernels.adapters import (
    FIELDS,
    MOST_SPLIT,
    DownSlots,
    Tiles,
    UpSlots,
    adapter_down,
    adapter_up,
    padded_columns,
    up_columns,
    up_room,
)
from penstock.backends.cuda.program import Launch, Views
from penstock.backends.cuda.step import DeviceStep
from penstock.backends.cuda.weights import Uploader
from penstock.interface.adapters import Adapter, AdapterSlots, LowRank
from penstock.interface.executor import Limits
from penstock.plan import ops
from penstock.plan.ops.base import RowBase
from penstock.plan.plan import Plan

_STAGING_BYTES: Final = 4 << 20
"""Pinned memory of each of the two buffers through which adapters come."""


@dataclass
class _Up:
    """An ``AdapterUp``."""

    op: ops.AdapterUp
    slots: UpSlots
    factors: Tensor | None = None
    """float32 ``[n]``: what the rows of its weights are multiplied by as they are written."""


@dataclass
class _Down:
    """An ``AdapterDown``, and what adds what it makes."""

    op: ops.AdapterDown
    base: RowBase
    """The kind of rows that it is of."""
    slots: DownSlots
    ups: dict[ops.BufferName, _Up] = field(default_factory=dict)
    """The ops that add it, by the buffers that they add to."""
    factors: Tensor | None = None
    """float32 ``[k]``: what the columns of its weights are multiplied by as they are written."""

    @property
    def nbytes(self) -> int:
        own = (self.slots.weights, self.slots.ranks, self.slots.scales)
        others = (each for up in self.ups.values() for each in (up.slots.weights, up.slots.columns))
        return sum(each.nbytes for each in (*own, *others))


class AdapterTables:
    """The slots of a plan on the device (``interface.adapters.AdapterMemory``).

    All memory is allocated at once: that of adapters of the largest rank in all slots. Weights are
    kept in the plan's type where that is bfloat16, else in float32.
    """

    def __init__(
        self, plan: Plan, slots: AdapterSlots, limits: Limits, device: torch.device
    ) -> None:
        """Allocate them; on the ``meta`` device they take no memory, and cannot be written."""
        self.rows = AdapterRows.of(plan, slots)
        self._upload = Uploader(device, 0 if device.type == "meta" else _STAGING_BYTES)
        self._downs: dict[ops.BufferName, _Down] = {}
        """Every addition, by the buffer between its ops."""
        most = (limits.max_tokens, limits.max_selected_rows, limits.max_logit_rows)
        sums, last = 0, ""
        for op in plan.ops:
            if isinstance(op, ops.AdapterDown):
                last, between = op.low, plan.buffers[op.low].rows
                made = self._downs[last] = self._down(op, between.base, plan, slots.count)
                few = min(between.count(*most), MOST_SPLIT)
                sums = max(sums, made.slots.splits[0] * few * len(op.parts) * op.rank)
            elif isinstance(op, ops.AdapterUp):
                if op.low != last:
                    raise ValueError("an addition of adapters comes between the ops of another")
                self._downs[last].ups[op.out] = self._up(op, plan, slots.count)
        self._sums = torch.empty(sums, dtype=torch.float32, device=device)
        """What an addition has between its kernels, of each split: of one at a time."""

    @classmethod
    def of(cls, plan: Plan, limits: Limits, device: torch.device) -> AdapterTables | None:
        """Return the tables of ``plan``; None where it has no room for adapters."""
        return None if plan.adapters is None else cls(plan, plan.adapters, limits, device)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self._sums.nbytes + sum(each.nbytes for each in self._downs.values())

    def _down(self, op: ops.AdapterDown, base: RowBase, plan: Plan, slots: int) -> _Down:
        parts, device = len(op.parts), self._upload.device
        shape = (slots, parts, op.rank, padded_columns(op.k))
        weights = torch.zeros(shape, dtype=_element(plan), device=device)
        ranks = torch.zeros((slots, parts), dtype=torch.int32, device=device)
        scales = torch.zeros((slots, parts), dtype=torch.float32, device=device)
        return _Down(op, base, DownSlots(weights, ranks, scales, op.k))

    def _up(self, op: ops.AdapterUp, plan: Plan, slots: int) -> _Up:
        device, widths = self._upload.device, [part.n for part in op.parts]
        shape = (slots, sum(widths), up_room(op.rank))
        weights = torch.zeros(shape, dtype=_element(plan), device=device)
        columns = torch.from_numpy(np.array(up_columns(widths), np.int32)).to(device)
        return _Up(op, UpSlots(weights, columns, op.at))

    def multiplied(self, op: ops.AdapterDown | ops.AdapterUp, factors: Tensor) -> None:
        """Let the weights of ``op`` be multiplied by ``factors`` as they are written: these may be
        filled until then."""
        down = self._downs[op.low]
        if isinstance(op, ops.AdapterDown):
            down.factors = factors
        else:
            down.ups[op.out].factors = factors

    def run_down(self, op: ops.AdapterDown, views: Views, step: DeviceStep) -> None:
        """Queue ``op``."""
        down, low = self._downs[op.low], views[op.low]
        x = views[op.x][: len(low)]
        adapter_down(x, down.slots, self._tiles(down, step), self._between(down, low))

    def run_up(self, op: ops.AdapterUp, views: Views, step: DeviceStep) -> None:
        """Queue ``op``, behind what :meth:`run_down` has queued."""
        down = self._downs[op.low]
        sums, tiles = self._between(down, views[op.low]), self._tiles(down, step)
        adapter_up(sums, down.slots, down.ups[op.out].slots, tiles, views[op.out])

    def _between(self, down: _Down, low: Tensor) -> Tensor:
        """Return the sums of a step, ``[splits, rows, parts * rank]``: those of one split, where
        one program adds them all, lie in ``low``."""
        splits, _ = down.slots.splits
        rows, cols = low.shape
        if splits == 1 or rows > MOST_SPLIT:
            return low.unsqueeze(0)
        return self._sums[: splits * rows * cols].view(splits, rows, cols)

    def _tiles(self, down: _Down, step: DeviceStep) -> Tiles:
        at = self.rows.index(down.base)
        return Tiles(step.adapter_lists[at].view(-1, FIELDS), step.adapter_lists[at + 1])

    def write(self, slot: int, adapter: Adapter) -> None:
        """As ``AdapterMemory``, behind the steps that are queued. Raises EngineDeadError where the
        GPU fails."""
        with one_error():
            for down in self._downs.values():
                own = [adapter.matrices.get(part.target) for part in down.op.parts]
                ranks = [0 if each is None else each.rank for each in own]
                scales = [0.0 if each is None else each.scale for each in own]
                self._upload.put(np.array(ranks, np.int32), down.slots.ranks[slot])
                self._upload.put(np.array(scales, np.float32), down.slots.scales[slot])
                self._write_down(slot, down, own)
                for up in down.ups.values():
                    self._write_up(slot, up, own[up.op.at :])

    def _write_down(self, slot: int, down: _Down, own: Sequence[LowRank | None]) -> None:
        for i, each in enumerate(own):
            if each is not None:
                values = self._sent(each.down)
                if down.factors is not None:
                    values *= down.factors
                down.slots.weights[slot, i, : each.rank, : down.op.k] = values

    def _write_up(self, slot: int, up: _Up, own: Sequence[LowRank | None]) -> None:
        first = 0
        for part, each in zip(up.op.parts, own, strict=False):
            to = up.slots.weights[slot, first : first + part.n]
            first += part.n
            if each is not None:
                values = self._sent(each.up)
                if up.factors is not None:
                    values *= up.factors[:, None]
                to[:, : each.rank] = values
                to[:, each.rank :] = 0  # kernels read on to the end of their tile

    def _sent(self, matrix: NDArray[Any]) -> Tensor:
        return self._upload.tensor(matrix.astype(np.float32), torch.float32)


def _element(plan: Plan) -> torch.dtype:
    return torch.bfloat16 if plan.weight_dtype == "bfloat16" else torch.float32


class Binder(Protocol):
    """The part of the binder that these ops use."""

    launches: list[Launch]
    adapters: AdapterTables | None

    def weight(self, name: ops.WeightName, dtype: torch.dtype = ...) -> Tensor: ...


def _append_down(b: Binder, op: ops.AdapterDown) -> None:
    tables = _tables(b, op)
    b.launches.append(lambda views, step: tables.run_down(op, views, step))


def _append_up(b: Binder, op: ops.AdapterUp) -> None:
    tables = _tables(b, op)
    b.launches.append(lambda views, step: tables.run_up(op, views, step))


def _tables(b: Binder, op: ops.AdapterDown | ops.AdapterUp) -> AdapterTables:
    assert b.adapters is not None, "a plan with these ops has room for adapters"
    if op.factors is not None:
        b.adapters.multiplied(op, b.weight(op.factors))
    return b.adapters


ADAPTER_OPS: Final[ops.OpTable[Binder]] = ops.op_table(
    ops.handles(ops.AdapterDown, _append_down),
    ops.handles(ops.AdapterUp, _append_up),
)
