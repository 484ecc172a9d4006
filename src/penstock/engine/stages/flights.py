"""Where the steps are that stages have been sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.engine.ranks.steps import StepFrame
from penstock.engine.stages.wire import StageResult
from penstock.interface.executor import OpTime
from penstock.peers.channel import Payload
from penstock.processes.frames import WireError


@dataclass
class Flight:
    """A step that has been sent to the first stage, and whose results were not taken."""

    step: StepFrame
    is_timed: bool
    at: int = 0
    """The first stage that is not known to have run it."""
    rows: Payload | None = None
    """What the last stage hands on, once it does."""
    ops: dict[int, list[OpTime]] = field(default_factory=dict)
    """What ops took, by stage, if that is wanted."""


class Flights:
    """The steps in flight, by their numbers. Its owner sees to it that one thread at a time asks
    and tells."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._flights: dict[int, Flight] = {}
        self.feeding: set[int] = set()
        """The stages that hand on to the next one directly."""

    def begin(self, number: int, step: StepFrame, is_timed: bool) -> Flight:
        flight = self._flights[number] = Flight(step, is_timed)
        return flight

    def is_done(self, number: int) -> bool:
        """Whether the last stage has run a step, and all have told what was wanted of it."""
        flight = self._flights[number]
        told = not flight.is_timed or len(flight.ops) == self._stages
        return flight.rows is not None and told

    def end(self, number: int) -> Flight:
        return self._flights.pop(number)

    def ran(self, stage: int, result: StageResult, payload: Payload) -> Flight | None:
        """Take in that a stage has run a step, with what it hands on unless it feeds the next;
        returns the step if the next stage has to be told to go on with it. Raises WireError where
        the stage cannot have run it."""
        flight = self._flights.get(result.number)
        if flight is not None and flight.is_timed:
            flight.ops[stage] = result.ops
        if stage in self.feeding:  # what it fed may be here already, and the step be over
            if flight is not None:
                flight.at = max(flight.at, stage + 1)
            return None
        if flight is None or not self._may_run(flight, stage):
            raise WireError(f"step {result.number} came from a stage that does not have it")
        flight.at = stage + 1
        if flight.at == self._stages:
            flight.rows = payload
            return None
        return flight

    def _may_run(self, flight: Flight, stage: int) -> bool:
        """Whether a step is at a stage, or on its way there by stages that feed each other."""
        return flight.at <= stage and self.feeding.issuperset(range(flight.at, stage))
