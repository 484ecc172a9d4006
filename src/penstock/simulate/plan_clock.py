"""The clock of a plan whose ops are timed one by one on a catalogue's device.

Products and the like depend on a step's numbers of rows alone, which recur; what they take is kept.
Attention depends on how far sequences are, and is linear in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from penstock.cache.geometry import Window
from penstock.models.spec import ModelSpec
from penstock.plan.costs import Demand, PlanCosts, StepSize
from penstock.simulate.clock import StepShape, straight
from penstock.sizing.accelerator import Accelerator
from penstock.sizing.parallel import Parallelism
from penstock.sizing.roofline import CostTable, Roofline
from penstock.sizing.step_time import StepTime

_NOBODY = np.zeros(0, np.int32)


@dataclass(frozen=True)
class AttentionTime:
    """The time of all attention ops of one demand, which read and multiply at once: the longer of
    the two counts. All but ``window`` are seconds."""

    window: Window | None
    op: float
    """What they take whatever they do."""
    read: float
    """What they take for each cached token that a sequence sees."""
    pair: float
    """The same for each token that a row sees."""


@dataclass(frozen=True)
class PlanClock:
    """The :class:`~penstock.simulate.clock.StepClock` of a plan.

    ``rest`` times a step without attention; the arrays of the sizes that it is given are those of
    empty sequences.
    """

    rest: StepTime
    attention: tuple[AttentionTime, ...]
    _kept: dict[tuple[int, int, int], float] = field(default_factory=dict)

    @classmethod
    def of_device(
        cls, spec: ModelSpec, costs: PlanCosts, device: Accelerator, parallel: Parallelism
    ) -> PlanClock:
        """A device of the catalogue, or several that share the model."""
        attended, rest = _split(costs)
        table = CostTable(PlanCosts(tuple(attended)), parallel.tensor)
        whole = Roofline.of(spec, table, device, parallel)
        moved = 1 / (device.bandwidth * whole.attained.bandwidth)
        operation = whole.seconds_per_operation
        return cls(
            Roofline.of(spec, CostTable(rest, parallel.tensor), device, parallel),
            tuple(
                AttentionTime(
                    window=each.window,
                    op=count * whole.attained.op_us * 1e-6,
                    read=count * each.token_bytes * moved,
                    pair=count * 2 * each.multiply_adds * float(operation[place]),
                )
                for place, (each, (_, count)) in enumerate(
                    zip(table.demands, attended, strict=True)
                )
            ),
        )

    @cached_property
    def windows(self) -> tuple[Window | None, ...]:
        return tuple(dict.fromkeys(each.window for each in self.attention))

    @cached_property
    def _places(self) -> tuple[tuple[AttentionTime, int], ...]:
        return tuple((each, self.windows.index(each.window)) for each in self.attention)

    def seconds(self, shape: StepShape) -> float:
        total = self._rest(shape.tokens, shape.logits, shape.sequences)
        for each, place in self._places:
            read, pair = each.read * shape.reads[place], each.pair * shape.pairs[place]
            total += each.op
            total += max(read, pair)
        return total

    def behind(self, before: int, tokens: int) -> float:
        """Nothing: it knows no caches."""
        return 0.0

    def decoding(self, sequences: int, reads: Sequence[Sequence[float]]) -> list[float]:
        fixed = self._rest(sequences, sequences, sequences)
        slopes = [0.0] * len(self.windows)
        for each, place in self._places:
            fixed += each.op
            slopes[place] += max(each.read, each.pair)
        return straight(fixed, slopes, reads)

    def _rest(self, tokens: int, logits: int, sequences: int) -> float:
        key = (tokens, logits, sequences)
        found = self._kept.get(key)
        if found is None:
            lens = np.zeros(sequences, np.int32)
            found = self.rest.seconds(StepSize(tokens, logits, logits, lens, _NOBODY))
            self._kept[key] = found
        return found


def _split(costs: PlanCosts) -> tuple[Sequence[tuple[Demand, int]], PlanCosts]:
    attended = [(each, count) for each, count in costs.counts if each.work == "attention"]
    rest = tuple((each, count) for each, count in costs.counts if each.work != "attention")
    return attended, PlanCosts(rest)
