"""The clock of a plan whose ops are timed one by one on a catalogue's device.

Products and the like depend on a step's numbers of rows alone, which recur; what they take is kept.
Attention depends on how far sequences are, and is linear in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from penstock.cache.geometry import Window
from penstock.plan.costs import PlanCosts, StepSize
from penstock.simulate.clock import StepShape, straight
from penstock.simulate.stages import HandOver, Stages
from penstock.sizing.pipeline import PipelineTime
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
    windows: tuple[Window | None, ...]
    """Those of all layers of the model, of which a stage has some."""
    _kept: dict[tuple[int, int, int], float] = field(default_factory=dict)

    @classmethod
    def of(cls, whole: Roofline, windows: tuple[Window | None, ...]) -> PlanClock:
        """The clock of a roofline."""
        moved = 1 / (whole.device.bandwidth * whole.attained.bandwidth)
        op, operation = whole.attained.op_us * 1e-6, whole.seconds_per_operation
        attention, others = [], []
        for place, (each, count) in enumerate(whole.table.costs.counts):
            if each.work != "attention":
                others.append((each, count))
                continue
            attention.append(
                AttentionTime(
                    window=each.window,
                    op=count * op,
                    read=count * each.token_bytes * moved,
                    pair=count * 2 * each.multiply_adds * float(operation[place]),
                )
            )
        rest = replace(whole, table=CostTable(PlanCosts(tuple(others))))
        return cls(rest, tuple(attention), windows)

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


def windows_of(costs: PlanCosts) -> tuple[Window | None, ...]:
    """What attention sees in the layers of a model: each kind once."""
    attended = (each for each, _ in costs.counts if each.work == "attention")
    return tuple(dict.fromkeys(each.window for each in attended))


def stages_of(time: PipelineTime, windows: tuple[Window | None, ...]) -> Stages:
    """The stages of a replica on devices of the catalogue."""
    ways = [HandOver()]
    for stage in range(len(time.stages) - 1):
        token = time.hand_over(stage, 2) - time.hand_over(stage, 1)
        ways.append(HandOver(time.hand_over(stage, 1) - token, token))
    return Stages(tuple(PlanClock.of(stage, windows) for stage in time.stages), tuple(ways))
