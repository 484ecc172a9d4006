"""What a candidate would make of a load here: its limits, planned as the engine plans, on the clock
of a calibration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from penstock.bench.progress import Progress
from penstock.collector import paused
from penstock.hardware import Hardware
from penstock.profile import Served
from penstock.simulate.calibration import Calibration
from penstock.simulate.configuration import Configuration
from penstock.simulate.fleet import Fleet
from penstock.simulate.machine_setups import Planned, measurable, on_this_machine
from penstock.simulate.outcome import SimulatedRun, outcome
from penstock.simulate.setup import Setup
from penstock.tune.load import TraceLoad
from penstock.tune.objective import served_of
from penstock.tune.space import Candidate, Space
from penstock.tune.variants import guessed


@dataclass
class Simulator:
    """Simulates candidates of a space, each planned once.

    ``calibrations`` are those that are known; ``calibrate`` measures a configuration of which there
    is none, with the largest limits that any candidate may have.
    """

    space: Space
    load: TraceLoad
    hardware: Hardware
    """What all of them are planned for: a machine whose free memory does not change meanwhile."""
    calibrations: list[Calibration]
    calibrate: Callable[[Candidate], Calibration] | None
    progress: Progress
    runs: dict[Candidate, SimulatedRun] = field(default_factory=dict)
    """The latest run of each."""
    guesses: dict[Candidate, str] = field(default_factory=dict)
    """Those whose steps nobody has measured, and what they were taken for, in words."""
    _setups: dict[Candidate, Setup] = field(default_factory=dict)

    def __call__(self, candidate: Candidate, conversations: int) -> Served:
        """A :class:`~penstock.tune.search.Simulate`."""
        return served_of(self.run(candidate, conversations))

    def run(
        self, candidate: Candidate, conversations: int | None, duration_s: float | None = None
    ) -> SimulatedRun:
        """Raises PenstockError where the candidate cannot run here."""
        setup = self._setup(candidate)
        fleet = Fleet(setup, self.load.offered(conversations, duration_s))
        with paused():
            fleet.run(iter(self.load.workload.recorded))
        self.progress.advance(1)
        load = self.load
        made = outcome(fleet, load.limits, load.rate, load.speed, load.concurrency, 0.0)
        self.runs[candidate] = made
        return made

    def _setup(self, candidate: Candidate) -> Setup:
        found = self._setups.get(candidate)
        if found is None:
            found = self._setups[candidate] = self._planned(candidate)
        return found

    def _planned(self, candidate: Candidate) -> Setup:
        name = self.space.named(candidate)
        planned = Planned.of(
            Configuration(name, candidate.engine, max_waiting=candidate.max_waiting),
            self.hardware,
        )
        known = {each.key for each in self.calibrations}
        if self.calibrate is not None and planned.key not in known:
            self.calibrations.append(self.calibrate(self._largest(planned, candidate)))
        if planned.key not in {each.key for each in self.calibrations}:
            guess = self._guess(planned, candidate)
            if guess is not None:
                return on_this_machine(planned, [guess])
        return on_this_machine(planned, self.calibrations)

    def _guess(self, planned: Planned, candidate: Candidate) -> Calibration | None:
        """A calibration that is made of the default's, for a variant of the model."""
        default = self.space.default
        if candidate.engine.model == default.engine.model:
            return None
        engine = msgspec.structs.replace(candidate.engine, model=default.engine.model)
        known = Planned.of(Configuration("default", engine), self.hardware)
        variants = self.space.variants
        gained_s = variants.gained_s(candidate.engine.model, default.engine.model)
        found = guessed(planned, known, self.calibrations, gained_s)
        if found is None:
            return None
        self.guesses[candidate] = (
            f"steps of {variants.name(candidate.engine.model)} were not measured, and are those of "
            f"the default's model, {found.words}"
        )
        return found.calibration

    def _largest(self, planned: Planned, candidate: Candidate) -> Candidate:
        """The candidate with the largest limits of the space, so that all are measured."""
        largest = candidate
        for each in self.space.dimensions:
            if each.option in ("max_num_seqs", "max_num_batched_tokens"):
                usual = getattr(planned.engine_plan.config, each.option)
                values = [usual if value is None else value for value in each.values]
                largest = largest.having(each.option, max(values))
        asked = Configuration("largest", largest.engine, max_waiting=1)
        engine = measurable([Planned.of(asked, self.hardware)])
        return replace(largest, engine=msgspec.structs.replace(engine, profile=None))
