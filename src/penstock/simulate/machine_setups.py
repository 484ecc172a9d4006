"""Setups of what the engine would run on this machine, timed by calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from penstock.config import EngineConfig
from penstock.engine.cached_blocks import check_exchange
from penstock.engine.loader import EnginePlan, open_model, plan_engine, state_limits
from penstock.errors import ConfigError
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.hardware import Hardware
from penstock.simulate.calibration import Calibration
from penstock.simulate.configuration import Configuration, refuse
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.handed import Way
from penstock.simulate.model_key import ModelKey
from penstock.simulate.setup import Apart, ReplicaLimits, Setup
from penstock.simulate.stage_times import stage_times
from penstock.simulate.stages import HandOver, Stages
from penstock.simulate.step_times import MeasuredClock, StepTimes
from penstock.sizing.accelerator import Network

FRAME_S: Final = 1e-4
BYTE_S: Final = 5e-9
"""What a frame takes from one process to another, and each of its bytes, which is copied and sealed
by both: 0.16 ms for 4 KiB, 5.5 ms for 1 MiB between two threads of a Xeon (Emerald Rapids)."""
BLOCK_BYTE_S: Final = 3e-10
"""What a byte of a block takes between two processes of one machine, by a socket: 8 MiB took 2.1 to
2.7 ms (Zen 4)."""
SEAL_BYTE_S: Final = 7e-10
"""What sealing at both ends adds to that between machines: 8 MiB took 7.6 to 9 ms then."""


@dataclass(frozen=True)
class Planned:
    """What the engine would run here for a configuration, or on several machines like this one."""

    asked: Configuration
    engine_plan: EnginePlan

    @classmethod
    def of(cls, asked: Configuration, hardware: Hardware | None = None) -> Planned:
        """``hardware`` is by default the machine as it is now. Raises ConfigError for what cannot
        be simulated, and what planning an engine raises."""
        config = asked.engine
        refuse(
            config,
            ("speculative",),
            "cannot be simulated yet: how many drafts are accepted depends on the texts; leave it "
            "out",
        )
        refuse(
            config,
            ("pipeline_stages",),
            "names hosts; a simulation takes their number (pipeline_parallel=) and what joins them "
            "(network=)",
        )
        made = cls(asked, plan_engine(config, open_model(config), hardware=hardware))
        if asked.prefill:
            resolved = made.engine_plan.config
            check_exchange(
                *(made.engine_plan.plan, resolved.backend, resolved.tensor_parallel),
                *(resolved.pipeline_parallel, resolved.enable_prefix_caching, "prefill="),
            )
        threads, stages = made.engine_plan.config.threads, config.pipeline_parallel
        if asked.network is None and threads % stages:
            raise ConfigError(
                f"{asked.name}: {threads} threads are not the same for {stages} stages, and a "
                f"calibration is of one number; take threads={threads // stages * stages or stages}"
            )
        return made

    @property
    def neighbours(self) -> int:
        """How many others compute on the same machine."""
        if self.asked.network is not None:
            return 0
        return len(self.engine_plan.stages[1:]) + self.asked.prefill

    @cached_property
    def key(self) -> ModelKey:
        """What a calibration must be of: of a pipeline, one process with the threads of a stage."""
        return msgspec.structs.replace(key_of(self.engine_plan), threads=self._threads)

    @property
    def _threads(self) -> int:
        """Those of a process. A stage on a machine of its own has all of them, and so has each
        engine that computes prompts or answers."""
        stages = len(self.engine_plan.stages) if self.asked.network is None else 1
        return self.engine_plan.config.threads // max(stages, 1)

    @property
    def measured(self) -> EngineConfig:
        """The options of an engine whose steps tell what this one's take."""
        asked = self.asked.engine
        if asked.pipeline_parallel == 1:
            return asked
        return msgspec.structs.replace(asked, pipeline_parallel=1, threads=self._threads)


def key_of(planned: EnginePlan) -> ModelKey:
    """What a calibration of an engine is of."""
    config = planned.config
    return ModelKey.of(
        planned.plan,
        planned.spec.architecture,
        config.backend,
        config.threads,
        config.tensor_parallel,
    )


def measurable(several: Sequence[Planned]) -> EngineConfig:
    """The options of an engine whose steps are those of all of these, which have one key."""
    limits = [each.engine_plan.config for each in several]
    return msgspec.structs.replace(
        several[0].measured,
        max_num_seqs=max(each.max_num_seqs for each in limits),
        max_num_batched_tokens=max(each.max_num_batched_tokens for each in limits),
        max_model_len=None,
        max_input_len=None,
        max_output_len=None,
        kv_cache_bytes=None,
        enable_prefix_caching=True,
    )


def on_this_machine(each: Planned, calibrations: Sequence[Calibration]) -> Setup:
    """A setup of what the engine would run here, timed by the calibration of its model. Raises
    ConfigError where there is none."""
    asked, planned = each.asked, each.engine_plan
    found = _calibration(each, calibrations)
    return Setup(
        asked.name,
        limits_of(planned, asked.max_waiting),
        measured_stages(each, found.steps, found.beside if each.neighbours else None),
        found.front,
        asked.replicas,
        asked.routing,
        apart_of(each),
        template=found.template,
        uneven=found.uneven,
        covered=found.covered,
        options=dict(asked.options),
        notes=list(_notes(each, found)),
    )


def _calibration(each: Planned, calibrations: Sequence[Calibration]) -> Calibration:
    """The one that is of what runs; of several, the one with its neighbours."""
    fitting = [known for known in calibrations if known.key == each.key]
    if fitting:
        return min(fitting, key=lambda known: abs(known.neighbours - each.neighbours))
    told = "; ".join(
        f"{known.model}: {', '.join(known.key.differences(each.key))}" for known in calibrations
    )
    options = "the same options"
    if each.engine_plan.stages:
        options += f" but pipeline_parallel, and threads={each.key.threads}"
    raise ConfigError(
        f"{each.asked.name}: no calibration is of what it runs ({told}); make one with {options} "
        "(penstock calibrate MODEL --out FILE), and name both by --calibration"
    )


def _notes(each: Planned, found: Calibration) -> Iterator[str]:
    yield f"calibrated {found.made}: the median error of its steps is {found.steps.error:.1%}"
    if found.checked is not None:
        yield f"the calibration: {found.checked}"
    if each.neighbours != found.neighbours and each.neighbours:
        yield (
            f"{each.asked.name}: {each.neighbours + 1} engines or stages share this machine, and "
            f"the calibration has measured steps beside {found.neighbours} others: what they take "
            f"is guessed; calibrate with --neighbours {each.neighbours}"
        )


def measured_stages(each: Planned, alone: StepTimes, beside: StepTimes | None) -> Stages:
    """What computes: one process, or stages, which are here or on machines of their own. ``alone``
    and ``beside`` others are the times of a process with the threads of a stage."""
    stages, whole = each.engine_plan.stages, each.engine_plan.plan
    if not stages:
        return Stages.one(MeasuredClock(alone), None if beside is None else MeasuredClock(beside))

    def clocks(times: StepTimes) -> tuple[MeasuredClock, ...]:
        parts = [stage.plan for stage in stages]
        return tuple(map(MeasuredClock, stage_times(times, whole, parts)))

    ways = [way_of(0, each.asked.network)]
    for stage in stages[:-1]:
        # What is for another stage than the engine's own goes through the engine's host.
        times = 1 if stage.number == len(stages) - 2 else 2
        ways.append(way_of(stage.sent_bytes, each.asked.network, times))
    return Stages(clocks(alone), tuple(ways), None if beside is None else clocks(beside))


def apart_of(each: Planned) -> Apart | None:
    """The engines that compute prompts apart, if there are any, and what joins them."""
    asked, groups = each.asked, each.engine_plan.plan.kv_groups
    if not asked.prefill:
        return None
    seconds, byte = FRAME_S, BLOCK_BYTE_S
    if asked.network is not None:
        seconds += asked.network.us * 1e-6
        byte += SEAL_BYTE_S + 1e-9 / asked.network.gb_per_s
    sizes = (groups.page_bytes,) * len(groups.windows)
    return Apart(asked.prefill, sizes, Way(seconds, byte))


def way_of(token_bytes: int, network: Network | None, times: int = 1) -> HandOver:
    """The way of a step's rows, so many bytes a token, which are sent so many times."""
    seconds, byte = FRAME_S, BYTE_S
    if network is not None:
        seconds += network.us * 1e-6
        byte += 1e-9 / network.gb_per_s
    return HandOver(times * seconds, times * token_bytes * byte)


def measured_setup(name: str, planned: EnginePlan, times: StepTimes, front: FrontTimes) -> Setup:
    """One server of what was planned, whose steps were measured."""
    return Setup(name, limits_of(planned), Stages.one(MeasuredClock(times)), front)


def limits_of(planned: EnginePlan, max_waiting: int = MAX_WAITING) -> ReplicaLimits:
    """What the options of an engine amount to."""
    config = planned.config
    return ReplicaLimits(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.lengths,
        config.num_blocks,
        windows=planned.plan.kv_groups.windows or (None,),
        states=state_limits(planned),
        enable_prefix_caching=config.enable_prefix_caching,
        max_waiting=max_waiting,
    )
