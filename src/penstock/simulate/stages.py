"""What computes the steps of an engine: one stage, or those of a pipeline, each on its own clock.

The last stage is the engine's own process, as in ``penstock.engine.stages``: the engine sends a
step to the first stage when it is scheduled, and runs its own part when it takes the step in, which
is when it comes to wait for it. Stages run steps in the order in which these are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.cache.geometry import Window
from penstock.simulate.clock import StepClock, StepShape


@dataclass(frozen=True)
class HandOver:
    """The way of a step to a stage, from the one before it; to the first one, from the engine."""

    seconds: float = 0.0
    token: float = 0.0
    """Seconds for each token."""

    def of(self, tokens: int) -> float:
        return self.seconds + self.token * tokens


@dataclass(frozen=True)
class Stages:
    """The clocks of an engine's stages, which have the same windows."""

    clocks: tuple[StepClock, ...]
    hand_overs: tuple[HandOver, ...]
    """The way to each of them."""
    beside: tuple[StepClock, ...] | None = None
    """Their clocks while something else computes on the same machine: another stage, or another
    engine. None: each has a machine of its own, or what it takes is not known."""

    @classmethod
    def one(cls, clock: StepClock, beside: StepClock | None = None) -> Stages:
        """An engine of one process."""
        return cls((clock,), (HandOver(),), None if beside is None else (beside,))

    @property
    def depth(self) -> int:
        """How many steps may be in flight."""
        return len(self.clocks)

    @property
    def windows(self) -> tuple[Window | None, ...]:
        return self.clocks[0].windows


class Flight:
    """Where the steps in flight are: when each stage is free, in seconds from the run's start."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._free = [0.0] * (stages.depth - 1)
        self._before = [0] * stages.depth
        """The tokens of the latest step of each stage, which has emptied its caches."""

    def send(self, at: float, shape: StepShape, slower: float, beside: bool) -> float:
        """Send a step to the first stage; returns when the last one has what those before hand on.

        ``slower``: the part by which steps take longer than alone. ``beside``: something else
        computes on the same machine meanwhile.
        """
        ways = self._stages.hand_overs
        for number, free in enumerate(self._free):
            # What the engine sends are tokens, which are nothing beside their rows.
            at = max(at + ways[number].of(shape.tokens if number else 0), free)
            at += self._seconds(number, shape, beside) * (1 + slower)
            self._free[number] = at
        return at + ways[-1].of(shape.tokens)

    def finish(self, shape: StepShape, beside: bool) -> float:
        """Seconds of the last stage for the step that was sent first of those that it has not
        run."""
        return self._seconds(self._stages.depth - 1, shape, beside)

    def clock(self, beside: bool) -> StepClock:
        """That of the last stage."""
        return self._clocks(beside)[-1]

    def behind(self, tokens: int, beside: bool) -> float:
        """What the next step of the last stage, of so many tokens, takes longer because of the one
        before it; those that follow are as large."""
        before, self._before[-1] = self._before[-1], tokens
        return self.clock(beside).behind(before, tokens)

    def _clocks(self, beside: bool) -> tuple[StepClock, ...]:
        found = self._stages.beside if beside else None
        return self._stages.clocks if found is None else found

    def _seconds(self, number: int, shape: StepShape, beside: bool) -> float:
        clock = self._clocks(beside)[number]
        before, self._before[number] = self._before[number], shape.tokens
        return clock.seconds(shape) + clock.behind(before, shape.tokens)
