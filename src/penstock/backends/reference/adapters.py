"""Low-rank additions in NumPy, row group by row group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backends.reference.numerics import as_bfloat16
from penstock.backends.reference.products import F32, product
from penstock.backends.reference.row_ops import Values
from penstock.interface.adapters import Adapter, LowRank
from penstock.interface.step import StepInput
from penstock.plan.ops import AdapterDown, AdapterUp, Buffer, Op, Rows
from penstock.plan.plan import Plan


class AdapterValues:
    """The adapters in the slots of a plan, widened to float32, and the ops that add them."""

    def __init__(self, plan: Plan, values: Values) -> None:
        assert plan.adapters is not None
        self._plan = plan
        self._values = values
        self._slots: list[dict[str, LowRank]] = [{} for _ in range(plan.adapters.count)]
        self._columns: dict[str, F32] = {}
        """What is multiplied into the columns of each matrix's ``down``, where anything is."""
        self._rows: dict[str, F32] = {}
        for op in plan.ops:
            if isinstance(op, AdapterDown | AdapterUp) and op.factors is not None:
                side = self._columns if isinstance(op, AdapterDown) else self._rows
                side.update({part.target: values.weights[op.factors] for part in op.parts})

    @property
    def ops(self) -> Mapping[type[Op], Callable[[Any, StepInput], None]]:
        return {AdapterDown: self._down, AdapterUp: self._up}

    def write(self, slot: int, adapter: Adapter) -> None:
        self._slots[slot] = {
            name: LowRank(
                self._rounded(each.down, self._columns.get(name)),
                self._rounded(each.up.T, self._rows.get(name)).T.copy(),
                each.scale,
            )
            for name, each in adapter.matrices.items()
        }

    def _rounded(self, values: NDArray[Any], factors: F32 | None) -> F32:
        """Values as the plan's type has them, with columns multiplied."""
        wide = values.astype(np.float32)
        if factors is not None:
            wide = wide * factors
        return as_bfloat16(wide) if self._plan.weight_dtype == "bfloat16" else wide

    def _down(self, op: AdapterDown, step: StepInput) -> None:
        x = self._values.buffers[op.x]
        low = self._plan.buffers[op.low]
        if low.rows == Rows.LOGITS:
            x = x[: len(step.logit_rows)]
        out = np.full((len(x), low.cols), np.nan, np.float32)
        for slot, rows in self._groups(low, step):
            for i, part in enumerate(op.parts):
                own = self._slots[slot].get(part.target)
                if own is not None:
                    columns = slice(i * op.rank, i * op.rank + own.rank)
                    out[rows, columns] = product(x[rows], own.down) * np.float32(own.scale)
        self._values.buffers[op.low] = out

    def _up(self, op: AdapterUp, step: StepInput) -> None:
        low, out = self._values.buffers[op.low], self._values.buffers[op.out]
        for slot, rows in self._groups(self._plan.buffers[op.out], step):
            first = 0
            for i, part in enumerate(op.parts, op.at):
                own = self._slots[slot].get(part.target)
                if own is not None:
                    columns = slice(i * op.rank, i * op.rank + own.rank)
                    added = product(np.ascontiguousarray(low[rows, columns]), own.up)
                    out[rows, first : first + part.n] += added
                first += part.n

    def _groups(self, buffer: Buffer, step: StepInput) -> Iterator[tuple[int, NDArray[np.intp]]]:
        """The rows of a buffer that have an adapter, slot by slot."""
        if len(step.adapters) == 0:
            return
        slots = step.row_adapters()
        if buffer.rows.base != "T":
            selected = [step.logit_rows]
            if buffer.rows.base == "S":
                selected.append(step.hidden_rows)
            slots = slots[np.concatenate(selected)]
        for slot in np.unique(slots[slots >= 0]):
            yield int(slot), np.flatnonzero(slots == slot)
