"""Measures the steps of a model in this process: what a :class:`StepTimes` is fitted to."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NoReturn

import numpy as np

from penstock.bench.meter import MeteredExecutor, StepProfile, timed_step
from penstock.bench.progress import Progress
from penstock.bench.session import Session
from penstock.bench.traces import Lengths
from penstock.bench.workload import random_requests
from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan
from penstock.interface.step import StepInput
from penstock.plan.costs import StepSize, seen
from penstock.simulate.clock import StepShape
from penstock.simulate.model_key import Covered
from penstock.simulate.neighbours import check_neighbours, running
from penstock.simulate.step_times import ObservedStep, StepTimes, WindowShare, window_shares

_ROUNDS: Final = 9
_BUDGET_S: Final = 25.0
"""After so many seconds no further round begins; one there always is."""
_CHUNKS: Final = (1, 4, 9, 17, 33, 66, 97, 130, 193, 258, 385, 510, 770, 1030, 1540, 2050)
_BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

_JOINING: Final = (5, 60, 200, 480)
"""Prompts of requests that join others."""


@dataclass(frozen=True)
class _Scene:
    """Requests that arrive together, and others that join them later, one every few steps."""

    first: tuple[Lengths, ...]
    later: tuple[Lengths, ...] = ()


@dataclass(frozen=True)
class _Profile(StepProfile):
    """The size of a step, and of how many sequences it computes more than one token."""

    chunks: int


class _SizeMeter(MeteredExecutor):
    """Keeps the size of every step."""

    def profiled(self, step: StepInput) -> StepProfile:
        chunks = int((np.diff(step.query_starts) > 1).sum())
        return _Profile(StepSize.of(step), [], 0.0, chunks)


@dataclass(frozen=True)
class MeasuredSteps:
    """What was found out about the steps of a model."""

    engine_plan: EnginePlan
    times: StepTimes
    alone: list[ObservedStep]
    """What ``times`` are fitted to."""
    covered: Covered
    beside: StepTimes | None
    """Its steps while neighbours compute; None: there were none."""


def measure_steps(config: EngineConfig, progress: Progress, neighbours: int = 0) -> MeasuredSteps:
    """Load the model and run scenes of steps: decoding by few and by many, short contexts and long
    ones, prompts in chunks of all sizes, alone and beside sequences that decode.

    Rounds of them take half a minute, besides loading; with ``neighbours``, engines in processes of
    their own that do the same all the time, as long again. Raises what loading raises.
    """
    check_neighbours(config, neighbours)
    with Session.open(config, _SizeMeter, progress) as session:
        plan = session.engine_plan
        windows = window_shares(plan.plan)
        scenes = list(_scenes(plan))
        observed = _observed(session, scenes, windows, progress, "steps")
        beside = None
        if neighbours:
            with running(config, neighbours):
                found = _observed(session, scenes, windows, progress, "steps beside others")
            beside = StepTimes.fit(found, windows)
    return MeasuredSteps(
        plan,
        StepTimes.fit(observed, windows),
        observed,
        Covered(
            rows=max(each.shape.tokens for each in observed),
            sequences=max(each.shape.sequences for each in observed),
            context=max(each.prompt + each.output for s in scenes for each in (*s.first, *s.later)),
        ),
        beside,
    )


def play_on(config: EngineConfig, begun: Callable[[], None]) -> NoReturn:
    """Load the model, and run the scenes over and over; ``begun`` is called before the first."""
    with Session.open(config, _SizeMeter) as session:
        windows = window_shares(session.engine_plan.plan)
        scenes = list(_scenes(session.engine_plan))
        begun()
        for seed in itertools.count():
            for _ in _played(session, scenes[seed % len(scenes)], windows, seed):
                pass
    raise AssertionError("it goes on until its process is ended")


def _observed(
    session: Session,
    scenes: Sequence[_Scene],
    windows: Sequence[WindowShare],
    progress: Progress,
    name: str,
) -> list[ObservedStep]:
    """Run rounds of the scenes; returns each step with the median of its seconds."""
    progress.begin(name, len(scenes) * _ROUNDS, "scenes")
    rounds: list[list[list[ObservedStep]]] = []
    ends = time.monotonic() + _BUDGET_S
    for number in range(_ROUNDS):
        rounds.append([])
        for place, scene in enumerate(scenes):
            if number and time.monotonic() > ends:
                break  # a round that is cut short counts with what it has
            seed = number * len(scenes) + place
            rounds[-1].append(list(_played(session, scene, windows, seed)))
            progress.advance(1)
    return _middles(rounds)


def _scenes(plan: EnginePlan) -> Iterator[_Scene]:
    config = plan.config
    blocks = config.num_blocks // max(len(plan.plan.kv_groups.windows), 1)
    longest, budget = config.max_model_len, config.max_num_batched_tokens

    def alike(count: int, prompt: int, output: int) -> tuple[Lengths, ...]:
        """So many requests, with shorter prompts where blocks or the context do not suffice; none
        where not even that does."""
        room = min(longest, blocks // count * BLOCK_SIZE) - output
        return (Lengths(min(prompt, room), output),) * count if room > 0 else ()

    batches = sorted({*(n for n in _BATCHES if n < config.max_num_seqs), config.max_num_seqs})
    scenes = [_Scene(alike(count, 8, 8)) for count in batches]
    apart = batches[:: max(len(batches) // 5, 1)]
    scenes += [_Scene(alike(count, longest * 3 // 4, 6)) for count in apart]
    chunks = (*(chunk for chunk in _CHUNKS if chunk < budget), budget, longest)
    scenes += [_Scene(alike(1, chunk, 3)) for chunk in chunks]
    for count in (2, 8, 24):
        places = min(count + len(_JOINING), config.max_num_seqs)
        first = alike(places, 16, 60)[:count]
        later = [each for prompt in _JOINING for each in alike(places, prompt, 8)[:1]]
        scenes.append(_Scene(first, tuple(later[: places - len(first)])))
    return (scene for scene in scenes if scene.first)


def _played(
    session: Session, scene: _Scene, windows: Sequence[WindowShare], seed: int
) -> Iterator[ObservedStep]:
    """The steps of a scene and their seconds; the same steps in every round, of other tokens."""
    core, meter = session.core, session.meter
    lengths = [*scene.first, *scene.later]
    requests = random_requests(lengths, session.vocab_size, seed, f"scene{seed}")
    for request in requests[: len(scene.first)]:
        core.add_request(request)
    left = requests[len(scene.first) :]
    steps = before = 0
    while core.has_work or left:
        if left and (steps % 6 == 5 or not core.has_work):
            core.add_request(left.pop(0))
        _, step = timed_step(core, meter)
        steps += 1
        if step.run is not None and isinstance(step.run.profile, _Profile):
            shape = _shape(step.run.profile, windows)
            yield ObservedStep(shape, before, step.seconds)
            before = shape.tokens


def _shape(profile: _Profile, windows: Sequence[WindowShare]) -> StepShape:
    size = profile.size
    return StepShape(
        size.tokens,
        size.logits,
        size.sequences,
        profile.chunks,
        tuple(float(seen(size.context_lens, each.seen).sum()) for each in windows),
        tuple(float(seen(size.positions + 1, each.seen).sum()) for each in windows),
    )


def _middles(rounds: Sequence[Sequence[Sequence[ObservedStep]]]) -> list[ObservedStep]:
    """Each step with the median of its seconds over the rounds but the first, in which memory is
    touched for the first time, unless none of the others came to it."""
    found = []
    for place, first in enumerate(rounds[0]):
        later = [scenes[place] for scenes in rounds[1:] if place < len(scenes)]
        for steps in zip(*(later or [first]), strict=False):
            found.append(steps[0]._replace(seconds=median(each.seconds for each in steps)))
    return found
