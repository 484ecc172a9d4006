"""A bound plan: what is launched for a step, op by op, over the buffers of one arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.backends.cuda.step import DeviceStep
from penstock.plan.memory import MemoryPlan
from penstock.plan.ops import Buffer, BufferName, Element
from penstock.plan.plan import Plan

Views = Mapping[BufferName, Tensor]
"""The plan's buffers, ``[rows, cols]`` with the rows of one step."""

Launch = Callable[[Views, DeviceStep], None]
"""One op. Launches kernels on the current stream, waits for nothing and allocates nothing."""

ELEMENTS: dict[Element, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
}


class Arena:
    """Device memory of a plan's buffers, placed as ``plan.memory`` says."""

    def __init__(self, plan: Plan, memory: MemoryPlan, device: torch.device) -> None:
        self._buffers = plan.buffers
        self._memory = memory
        # Zeros: rows of padding are computed, too, and begin with what is there.
        self._bytes = torch.zeros(memory.total_bytes, dtype=torch.uint8, device=device)

    def views(self, step: DeviceStep) -> Views:
        """Every buffer with the step's rows. Layers' buffers mostly share places, and views."""
        numbers = (step.num_tokens, len(step.selected_rows), step.num_logit_rows)
        made: dict[tuple[int, int, int, int, Element], Tensor] = {}
        views: dict[BufferName, Tensor] = {}
        for name, buffer in self._buffers.items():
            offset, stride = self._memory.offsets[name], self._memory.strides[name]
            rows = buffer.rows.count(*numbers)
            key = (offset, stride, rows, buffer.cols, buffer.element)
            if key not in made:
                made[key] = self._view(buffer, rows, offset, stride)
            views[name] = made[key]
        return views

    def _view(self, buffer: Buffer, rows: int, offset: int, stride: int) -> Tensor:
        dtype = ELEMENTS[buffer.element]
        size = dtype.itemsize
        typed = self._bytes.view(dtype)
        return torch.as_strided(typed, (rows, buffer.cols), (stride // size, 1), offset // size)


class Results(NamedTuple):
    """Results of a step: views of the arena, for work that is queued later."""

    logits: Tensor  # [R, vocabulary]
    argmax: Tensor  # [R, 1]
    hidden: Tensor  # [R + H, hidden size] float32 or bfloat16
    taps: Tensor | None  # [R + H, taps * hidden size]
    more_logits: tuple[Tensor, ...]  # of each head after the first


class Program:
    """The ops of a plan in their order."""

    def __init__(self, launches: Sequence[Launch], arena: Arena, plan: Plan) -> None:
        self._launches = tuple(launches)
        self._arena = arena
        self._plan = plan

    def run(self, step: DeviceStep) -> Results:
        """Queue a step."""
        views = self._arena.views(step)
        for launch in self._launches:
            launch(views, step)
        plan = self._plan
        assert plan.logits is not None
        assert plan.argmax is not None
        assert plan.hidden is not None
        return Results(
            views[plan.logits],
            views[plan.argmax],
            views[plan.hidden],
            None if plan.taps is None else views[plan.taps],
            tuple(views[name] for name in plan.more_logits),
        )
