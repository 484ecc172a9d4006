"""The time of steps of a model on one device, or on the ranks and stages of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock.models.spec import ModelSpec
from penstock.plan.costs import StepSize
from penstock.sizing.accelerator import Accelerator, Attained
from penstock.sizing.fabric import Fabric
from penstock.sizing.model import SizedPlan
from penstock.sizing.parallel import Parallelism, collectives, handed_on, reduced
from penstock.sizing.roofline import Bounds, CostTable, Exchanges, Roofline


@dataclass(frozen=True)
class Part:
    """What one rank of a stage runs."""

    table: CostTable
    exchanges: Exchanges | None
    handed_on: int
    """Bytes of a token that go to the next stage."""

    @classmethod
    def of(cls, sized: SizedPlan, spec: ModelSpec, parallel: Parallelism, fabric: Fabric) -> Part:
        """``sized`` is one of the plans of ``parallel``."""
        exchanges = None
        if parallel.tensor > 1:
            found = (
                collectives(sized.plan)
                if parallel.exchange == "gather"
                else reduced(sized.plan, spec)
            )
            exchanges = Exchanges(found, parallel.tensor, fabric)
        return cls(sized.table, exchanges, handed_on(sized.plan))


@dataclass(frozen=True)
class PipelineTime:
    """The :class:`~penstock.sizing.step_time.StepTime` of a replica: each step goes through all
    stages, of which one alone is no pipeline.

    With several steps in flight, a step takes as long as the slowest stage has to do for all of
    them, if that is longer than its own way: it waits for the others. The engine's process, with
    what the host does for each step, is the last stage.
    """

    stages: tuple[Roofline, ...]
    handed_on: tuple[int, ...]
    """Bytes of a token that each hands to the next."""
    fabric: Fabric
    parallel: Parallelism
    in_flight: int = 1

    @classmethod
    def of(
        cls,
        parts: Sequence[Part],
        device: Accelerator,
        fabric: Fabric,
        parallel: Parallelism,
        attained: Attained | None = None,
    ) -> PipelineTime:
        """``attained``: by default the device's own."""
        whole = attained or device.attains
        without_host = msgspec.structs.replace(whole, step_us=0.0)
        return cls(
            tuple(
                Roofline(
                    part.table,
                    device,
                    whole if number == len(parts) - 1 else without_host,
                    part.exchanges,
                )
                for number, part in enumerate(parts)
            ),
            tuple(part.handed_on for part in parts),
            fabric,
            parallel,
        )

    def flying(self, steps: int) -> PipelineTime:
        """The time of a step of which so many are in flight."""
        return replace(self, in_flight=steps)

    def seconds(self, size: StepSize) -> float:
        return self.bounds(size).seconds

    def bounds(self, size: StepSize) -> Bounds:
        each = [stage.bounds(size) for stage in self.stages]
        if len(each) == 1:
            return each[0]
        sent = sum(map(self.hand_over, range(len(each)), [size.tokens] * len(each)))
        through = Bounds(0.0, 0.0, sent, 0.0)
        for stage in each:
            through = through.plus(stage)
        slowest = max(each, key=lambda stage: stage.seconds).times(self.in_flight)
        return slowest if slowest.seconds > through.seconds else through

    def hand_over(self, stage: int, tokens: int) -> float:
        """Seconds from the end of a step on a stage until the next one has what it hands on; 0 for
        the last."""
        return self.fabric.handed_on(tokens * self.handed_on[stage], self.parallel, stage)
