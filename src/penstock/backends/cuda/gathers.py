"""What ranks exchange in a step: ``plan.ops.AllGather`` and ``plan.ops.GatherToFirst``.

A rank's columns are packed, those of all ranks come back one rank behind the other, and are put in
their places in rows. All of it is copies on the device, between buffers that never move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from penstock.backends.cuda.group import Group
from penstock.backends.cuda.program import Launch, Views
from penstock.backends.cuda.step import DeviceStep
from penstock.interface.executor import Limits
from penstock.plan import ops
from penstock.plan.gathers import slot_bytes
from penstock.plan.plan import Plan

_LARGEST: Final = 8
"""Bytes of the largest element of a buffer."""

Columns = tuple[tuple[int, int], ...]
"""The columns (first, end) of each rank."""


@dataclass(frozen=True)
class Exchange:
    """A group, and device memory for what is on its way: one gather at a time uses it."""

    group: Group
    part: Tensor
    """uint8: the rank's own columns, packed, and as wide as the widest rank's."""
    parts: Tensor
    """uint8: those of all ranks."""

    @classmethod
    def of(cls, plan: Plan, limits: Limits, group: Group, device: torch.device) -> Exchange:
        """Return that of one rank's ``plan``."""
        size = _most_bytes(plan, limits)
        part = torch.zeros(size, dtype=torch.uint8, device=device)
        return cls(group, part, torch.zeros(group.world * size, dtype=torch.uint8, device=device))

    @staticmethod
    def nbytes(plan: Plan, limits: Limits, world: int) -> int:
        """Return the bytes on the device of each of so many ranks."""
        return (1 + world) * _most_bytes(plan, limits)

    def all_gather(self, x: Tensor, out: Tensor, columns: Columns) -> None:
        """Run ``plan.ops.AllGather``: x ``[rows, c]``, out ``[rows, columns]``, of one type."""
        if len(x):
            part = self._packed(x, _widest(columns))
            parts = self.parts[: self.group.world * part.numel()]
            self.group.all_gather(parts, part)
            _put(parts.view(x.dtype), out, columns)

    def gather_to_first(self, x: Tensor, out: Tensor | None, columns: Columns) -> None:
        """Run ``plan.ops.GatherToFirst``; ``out`` is None at all ranks but the first."""
        if len(x):
            part = self._packed(x, _widest(columns))
            if out is None:
                self.group.gather_to_first(None, part)
                return
            parts = self.parts[: self.group.world * part.numel()]
            self.group.gather_to_first(parts, part)
            _put(parts.view(x.dtype), out, columns)

    def _packed(self, x: Tensor, width: int) -> Tensor:
        """The bytes of x ``[rows, width]``; what is behind its own columns may be anything."""
        rows, own = x.shape
        if own == width and x.is_contiguous():
            return x.view(-1).view(torch.uint8)
        part = self.part[: rows * width * x.itemsize]
        part.view(x.dtype).view(rows, width)[:, :own] = x
        return part


def _most_bytes(plan: Plan, limits: Limits) -> int:
    """Return the most bytes that a rank gives at once, in whole elements of any type."""
    most = slot_bytes(plan, limits.max_tokens, limits.max_selected_rows)
    return -(-most // _LARGEST) * _LARGEST


def _widest(columns: Columns) -> int:
    return max(end - first for first, end in columns)


def _put(parts: Tensor, out: Tensor, columns: Columns) -> None:
    """Put all ranks' columns in their places; ``parts`` has them one rank behind the other, each as
    wide as the widest."""
    rows, world, width = len(out), len(columns), _widest(columns)
    packed = parts.view(world, rows, width)
    if columns == tuple((rank * width, (rank + 1) * width) for rank in range(world)):
        out.view(rows, world, width).copy_(packed.transpose(0, 1))
        return
    for each, (first, end) in zip(packed, columns, strict=True):
        out[:, first:end] = each[:, : end - first]


class Ranked(Protocol):
    """The part of the binder that these ops use."""

    launches: list[Launch]

    @property
    def exchange(self) -> Exchange: ...


def _all_gather(b: Ranked, op: ops.AllGather) -> None:
    exchange = b.exchange

    def launch(views: Views, step: DeviceStep) -> None:
        exchange.all_gather(views[op.x], views[op.out], op.ranks)

    b.launches.append(launch)


def _gather_to_first(b: Ranked, op: ops.GatherToFirst) -> None:
    exchange = b.exchange

    def launch(views: Views, step: DeviceStep) -> None:
        out = None if op.out is None else views[op.out]
        exchange.gather_to_first(views[op.x], out, op.ranks)

    b.launches.append(launch)


GATHER_OPS: Final[ops.OpTable[Ranked]] = ops.op_table(
    ops.handles(ops.AllGather, _all_gather),
    ops.handles(ops.GatherToFirst, _gather_to_first),
)
