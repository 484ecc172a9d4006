"""The interface of what predicts the time of a step."""

from __future__ import annotations

from typing import Protocol

from penstock.plan.costs import StepSize


class StepTime(Protocol):
    """Predicts steps of one plan on one machine, or on a group of devices."""

    def seconds(self, size: StepSize) -> float:
        """The time of a step of this size, from the call of the scheduler to the next."""
        ...
