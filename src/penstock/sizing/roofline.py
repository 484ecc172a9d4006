"""The roofline: each op takes as long as its bytes or its arithmetic, whichever is longer.

Williams, Waterman and Patterson, "Roofline", 2009, op by op: a step is the sum of its ops, what
ranks send each other, and what launches and the host take. It knows no caches and no shapes, so a
real engine is slower; :class:`~penstock.sizing.accelerator.Attained` has what is usual of peaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from penstock.plan.costs import Arithmetic, Demand, PlanCosts, StepSize
from penstock.sizing.accelerator import Accelerator, Attained
from penstock.sizing.fabric import Fabric
from penstock.sizing.parallel import Collective

PEAK = Attained(bandwidth=1.0, arithmetic=1.0, step_us=0.0, op_us=0.0)
"""An engine that reaches every peak: the bound that nothing beats."""


@dataclass(frozen=True)
class Bounds:
    """Seconds of a step by what binds them."""

    compute: float
    """What ops take whose arithmetic is longer than their bytes."""
    memory: float
    """What ops take whose bytes are longer."""
    communication: float
    overhead: float

    @property
    def seconds(self) -> float:
        return self.compute + self.memory + self.communication + self.overhead

    @property
    def binds(self) -> str:
        """What most of the step is."""
        parts = {
            "compute": self.compute,
            "memory": self.memory,
            "communication": self.communication,
            "overhead": self.overhead,
        }
        return max(parts, key=lambda name: parts[name])

    @property
    def share(self) -> float:
        """The part of the step that this is."""
        parts = (self.compute, self.memory, self.communication, self.overhead)
        return max(parts) / self.seconds if self.seconds else 0.0

    def plus(self, other: Bounds) -> Bounds:
        return Bounds(
            self.compute + other.compute,
            self.memory + other.memory,
            self.communication + other.communication,
            self.overhead + other.overhead,
        )

    def times(self, count: int) -> Bounds:
        return Bounds(
            count * self.compute,
            count * self.memory,
            count * self.communication,
            count * self.overhead,
        )


@dataclass
class CostTable:
    """Bytes and operations of a plan's ops in steps that were asked for before, ``[2, demands]``.

    Devices of the same kind share one: what a step costs does not depend on them.
    """

    costs: PlanCosts
    _kept: dict[StepSize, np.ndarray] = field(default_factory=dict)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        return tuple(each for each, _ in self.costs.counts)

    @cached_property
    def counts(self) -> np.ndarray:
        return np.array([count for _, count in self.costs.counts], np.float64)

    def at(self, size: StepSize) -> np.ndarray:
        found = self._kept.get(size)
        if found is None:
            costs = [each.cost(size) for each in self.demands]
            found = np.array([[c.num_bytes for c in costs], [c.operations for c in costs]], float)
            self._kept[size] = found
        return found


@dataclass(frozen=True)
class Exchanges:
    """What ``ranks`` exchange in a step, over a fabric."""

    collectives: Mapping[Collective, int]
    """How often each."""
    ranks: int
    fabric: Fabric

    def seconds(self, size: StepSize) -> float:
        total = 0.0
        for each, count in self.collectives.items():
            rows = each.rows.count(size.tokens, size.selected, size.logits)
            if rows:
                total += count * self.fabric.seconds(each.kind, rows * each.row_bytes, self.ranks)
        return total


@dataclass(frozen=True)
class Roofline:
    """The :class:`~penstock.sizing.step_time.StepTime` of a plan on a device of the catalogue."""

    table: CostTable
    device: Accelerator
    attained: Attained
    exchanges: Exchanges | None = None
    """What it exchanges with other ranks in a step; None where there are none."""

    @classmethod
    def of(
        cls,
        table: CostTable,
        device: Accelerator,
        attained: Attained | None = None,
        exchanges: Exchanges | None = None,
    ) -> Roofline:
        """Return the roofline of ``table`` on ``device``; without ``attained``, what the catalogue
        says that the device attains counts."""
        return cls(table, device, attained or device.attains, exchanges)

    def seconds(self, size: StepSize) -> float:
        return self.bounds(size).seconds

    def bounds(self, size: StepSize) -> Bounds:
        moved, operations = self.table.at(size)
        memory = moved / (self.device.bandwidth * self.attained.bandwidth)
        compute = operations * self.seconds_per_operation
        counts = self.table.counts
        bound = compute > memory
        host = self.attained.step_us + self.attained.op_us * float(counts.sum())
        return Bounds(
            compute=float((compute * counts)[bound].sum()),
            memory=float((memory * counts)[~bound].sum()),
            communication=0.0 if self.exchanges is None else self.exchanges.seconds(size),
            overhead=host * 1e-6,
        )

    @cached_property
    def seconds_per_operation(self) -> np.ndarray:
        """Seconds of an operation of each demand of the table."""
        rates = [self.device.rate(self._arithmetic(each)) for each in self.table.demands]
        return 1 / (np.array(rates) * self.attained.arithmetic)

    def _arithmetic(self, demand: Demand) -> Arithmetic:
        """GPUs multiply keys and values of codes, and of float16, as 16-bit floats."""
        if self.device.kind == "gpu" and demand.work == "attention" and demand.form != "float32":
            return "bf16"
        return demand.arithmetic
