"""Recordings of calibrations that were never measured: loads are simulated with known constants,
and noted as a client and an engine would."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from penstock.bench.load.arrivals import Gamma
from penstock.simulate.clock import StepShape
from penstock.simulate.engine import Engine, _Sent
from penstock.simulate.engine_log import EngineLog
from penstock.simulate.fleet import Fleet, Offered
from penstock.simulate.front_end import Answer, FrontTimes
from penstock.simulate.model_key import Covered, ModelKey
from penstock.simulate.others import Others
from penstock.simulate.recording import VERSION, ClientRequest, RecordedLoad, Recording
from penstock.simulate.replica import Replica
from penstock.simulate.server_loads import ServerLoad
from penstock.simulate.setup import Setup
from penstock.simulate.stages import Stages
from penstock.simulate.step_times import MeasuredClock, ObservedStep, StepTimes, WindowShare

WINDOWS = (WindowShare(None, False, 1.0),)
STEPS = StepTimes(
    tokens=(1, 16, 64),
    rows=(4e-4, 8e-4, 3.2e-3),
    sequence=1e-5,
    sample=5e-6,
    chunk=6e-5,
    read=2e-8,
    pair=1e-8,
    behind=5e-7,
    windows=WINDOWS,
    error=0.0,
)
FRONT = FrontTimes(
    request=2e-3,
    prompt_token=2e-6,
    answer=5e-4,
    chunk=6e-5,
    handled=1.2e-3,
    step=5e-5,
    sequence=2e-6,
    slower=0.06,
    lost_request=6e-4,
)
"""What the loads are simulated with."""


@dataclass
class Weather:
    """What the machine does besides: nothing, by default."""

    outliers: float = 0.0
    """The part of the steps that take many times as long."""
    slow: tuple[int, ...] = ()
    """Rounds in which everything takes half as long again."""
    spread: float = 0.0
    """The standard deviation of the logarithm of each step's time."""
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))

    def factor(self, number: int) -> float:
        """How many times as long a step of a round takes."""
        drawn = float(np.exp(self.spread * self.random.standard_normal()))
        if self.random.random() < self.outliers:
            drawn *= float(self.random.uniform(3, 12))
        return drawn * (1.5 if number in self.slow else 1.0)


@dataclass
class _Clock:
    """A clock under the weather: each step is asked for once, and drawn then."""

    clock: MeasuredClock
    weather: Weather
    round: int

    @property
    def windows(self) -> tuple[None, ...]:
        return (None,)

    def seconds(self, shape: StepShape) -> float:
        return self.clock.seconds(shape) * self.weather.factor(self.round)

    def behind(self, before: int, tokens: int) -> float:
        return self.clock.behind(before, tokens)

    def decoding(self, sequences: int, reads: Sequence[Sequence[float]]) -> list[float]:
        raise AssertionError("steps are taken one by one")


class _Engine(Engine):
    """An engine that notes its steps, and takes them one by one."""

    def __init__(self, setup: Setup, replica: Replica, notes: _Notes) -> None:
        super().__init__(setup, replica)
        self._notes = notes

    def _steady(self, stop: float) -> bool | None:
        return None

    def add(self, answer: Answer) -> None:
        self._notes.arrived(self.at, answer)
        super().add(answer)

    def _take_in(self, sent: _Sent) -> list[object]:  # type: ignore[override]
        began = self.at
        updates = super()._take_in(sent)
        front, count = self.setup.front, len(sent.step.sequences)
        # The rest is between this step and the next.
        after = front.step + front.sequence * count
        self._notes.stepped(began, self.at - after, sent)
        return updates  # type: ignore[return-value]


class _Notes:
    """What an engine would have noted of all loads, each of which begins at ``offset``."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.step_times, self.request_times = array("d"), array("d")
        self.step_counts, self.request_counts = array("i"), array("i")
        self.tokens = array("i")
        self.lengths = bytearray()
        self._numbers: dict[str, int] = {}

    def arrived(self, at: float, answer: Answer) -> None:
        self._numbers[answer.asked.name] = len(self.request_times)
        self.request_times.append(self.offset + at)
        self.request_counts.extend((answer.asked.prompt, answer.asked.output))

    def stepped(self, began: float, ended: float, sent: _Sent) -> None:
        number = len(self.step_times) // 2
        self.step_times.extend((self.offset + began, self.offset + ended))
        scheduled = sent.step.sequences
        self.step_counts.extend((len(scheduled), len(sent.step.samples)))
        rows = [each.num_tokens for each in scheduled]
        lens = [each.start + each.num_tokens for each in scheduled]
        self.lengths += np.array([0, *np.cumsum(rows), *lens], np.int32).tobytes()
        for each in sent.step.samples:
            request = self._numbers[each.request_id]
            if len(each.token_ids) - each.num_prompt_tokens == 1:
                self.tokens.extend((request, number, 0))
            if each.finish_reason is not None:
                self.tokens.extend((request, number, 1))

    def log(self) -> EngineLog:
        return EngineLog(
            step_times=self.step_times.tobytes(),
            step_counts=self.step_counts.tobytes(),
            lengths=bytes(self.lengths),
            request_times=self.request_times.tobytes(),
            request_counts=self.request_counts.tobytes(),
            tokens=self.tokens.tobytes(),
        )


def made_recording(
    setup: Setup,
    loads: Sequence[ServerLoad],
    key: ModelKey,
    weather: Weather | None = None,
    rounds: int = 4,
    front: FrontTimes = FRONT,
    steps: StepTimes = STEPS,
) -> Recording:
    """A recording of rounds of these loads, simulated with these constants."""
    weather = weather or Weather()
    notes, recorded = _Notes(), []
    for number in range(rounds):
        for place, load in enumerate(loads):
            clock = _Clock(MeasuredClock(steps), weather, number)
            real = replace(setup, stages=Stages.one(clock), front=front)
            seeded = replace(load, seed=number)
            fleet = Fleet(
                real,
                Offered(
                    None if load.rate is None else Gamma(load.rate),
                    load.concurrency,
                    load.requests,
                    load.duration_s,
                    number,
                ),
            )
            replica = fleet.replicas[0]
            replica.engine = _Engine(real, replica, notes)
            gaps = _gaps(replica)
            fleet.run(islice(load.workload.conversations(number), load.requests))
            seconds = max(each.end_s for each in fleet.answers)
            recorded.append(
                RecordedLoad(
                    name=f"load {place}",
                    load=seeded,
                    round=number,
                    began=notes.offset,
                    seconds=seconds,
                    requests=[
                        ClientRequest(
                            each.asked.sent_s,
                            each.asked.prompt,
                            each.asked.output,
                            [round(gap * 1e6) for gap in gaps[each.asked.name]],
                        )
                        for each in fleet.answers
                    ],
                    template=0,
                    others=Others(0.0, 0.0),
                )
            )
            notes.offset += seconds + 1.0
    return Recording(
        version=VERSION,
        made="2026-01-01T00:00:00+00:00",
        model="made up",
        key=key,
        windows=WINDOWS,
        covered=Covered(rows=64, sequences=16, context=512),
        alone=list(_alone(steps)),
        loads=recorded,
        engine=notes.log(),
    )


def _gaps(replica: Replica) -> dict[str, list[float]]:
    """The times between the chunks of each request, from its sending on, as they come."""
    found: dict[str, list[float]] = {}
    send = replica.front._send

    def noted(each: Answer, at: float) -> None:
        before = each.asked.sent_s if each.first_s is None else each.last_s
        found.setdefault(each.asked.name, []).append(at - before)
        send(each, at)

    replica.front._send = noted  # type: ignore[method-assign]
    return found


def _alone(steps: StepTimes) -> list[ObservedStep]:
    clock = MeasuredClock(steps)
    shapes = [
        StepShape(n, n, n, 0, (float(n * context),), (float(n * context),))
        for n in (1, 2, 4, 8, 16)
        for context in (20, 300)
    ]
    shapes += [
        StepShape(n, 1, 1, 1, (float(start + n),), (float(n * start + n * (n + 1) / 2),))
        for n in (4, 9, 17, 33, 64)
        for start in (0, 200)
    ]
    found = [ObservedStep(each, 0, clock.seconds(each)) for each in shapes]
    found += [
        ObservedStep(each, 64, clock.seconds(each) + clock.behind(64, each.tokens))
        for each in shapes
    ]
    return found
