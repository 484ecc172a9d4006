"""Setups of an engine's options: on a device of the catalogue, or on this machine, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import msgspec

from penstock.backends.registry import backend
from penstock.cache.geometry import sequence_blocks, tokens_in
from penstock.config import EngineConfig
from penstock.engine.loader import EnginePlan, open_model, plan_engine, state_limits
from penstock.errors import ConfigError
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.hardware import Hardware
from penstock.length_limits import LengthLimits
from penstock.models.spec import ModelSpec
from penstock.resolve.step_limits import decide_step_limits
from penstock.simulate.calibration import Calibration, MeasuredClock, ModelKey, StepTimes
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.plan_clock import PlanClock
from penstock.simulate.setup import ReplicaLimits, Setup
from penstock.sizing.accelerator import Accelerator
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.parallel import Parallelism, check
from penstock.sizing.search import MEMORY_USED

ASSUMED: Final = FrontTimes(request=0.003, prompt_token=1e-6, answer=0.001, chunk=25e-6)
"""What a server takes besides its steps, where nobody measured it: as ours does on a CPU of 2025
(benchmarks/server)."""

_OF_DEVICES: Final = (
    *("model", "ignore_config_field", "quantization", "kv_cache_dtype", "kv_cache_bytes"),
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_prefix_caching"),
)
"""Options of the engine that a setup on a device of the catalogue acts on."""


@dataclass(frozen=True)
class Configuration:
    """A configuration as it was asked for."""

    name: str
    engine: EngineConfig
    replicas: int = 1
    routing: str = "round-robin"
    max_waiting: int = MAX_WAITING
    tensor: int = 1
    """Devices that share each layer of a replica."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Its options as they were written."""


def on_device(asked: Configuration, spec: ModelSpec, device: Accelerator) -> Setup:
    """A setup on a device of the catalogue, by its roofline. Raises ConfigError where the model
    does not fit, or for options that this cannot take into account."""
    config = asked.engine
    _refuse(
        config,
        [name for name in EngineConfig.__struct_fields__ if name not in _OF_DEVICES],
        "is not taken into account with --gpu; leave it out",
    )
    parallel = Parallelism(asked.tensor)
    if asked.tensor > (device.most if device.link is not None else 1):
        raise ConfigError(f"{asked.name}: a machine has no {asked.tensor} linked {device.name}")
    check(spec, parallel)
    defaults = backend("cuda" if device.kind == "gpu" else "cpu").defaults
    steps = decide_step_limits(config, defaults)
    if spec.quantized is not None and spec.quantized.schemes and config.quantization != "none":
        raise ConfigError(f"{asked.name}: the checkpoint is quantized already; leave that out")
    precision = Precision(config.quantization, config.kv_dtype(spec.dtype))
    sized = SizedModel(spec).plan(device.kind, precision, steps.max_num_batched_tokens)
    its = sized.footprint
    if its.state_bytes:
        raise ConfigError(
            f"{spec.architecture} keeps a state of each sequence, which --gpu cannot simulate yet; "
            "calibrate it on a machine that runs it (penstock calibrate)"
        )
    heads = max((layer.kv_heads for layer in sized.plan.kv_layers), default=asked.tensor)
    room = device.memory_bytes * MEMORY_USED - its.weights / asked.tensor - its.activations
    cache = room * min(asked.tensor, heads)
    if config.kv_cache_bytes is not None:
        if config.kv_cache_bytes > cache:
            raise ConfigError(
                f"{asked.name}: kv_cache_bytes is {config.kv_cache_bytes:,}, and {device.name} has "
                f"room for {max(int(cache), 0):,} beside the weights"
            )
        cache = config.kv_cache_bytes
    blocks = int(cache // its.page_bytes) if its.page_bytes else 0
    most = config.max_model_len or spec.max_positions
    if most > spec.max_positions:
        raise ConfigError(
            f"{asked.name}: max_model_len {most:,} exceeds the model's {spec.max_positions:,}"
        )
    held = tokens_in(its.windows, max(blocks, 0), most)
    if blocks < 1 or held < (1 if config.max_model_len is None else most):
        needed = sequence_blocks(its.windows, most) * its.page_bytes
        raise ConfigError(
            f"{asked.name}: {asked.tensor} x {device.name} hold {max(int(room), 0):,} bytes beside "
            f"the weights, and a request may need {needed:,}; take more devices (tp=), fewer bits "
            "(quantization=, kv_cache_dtype=), a smaller max_model_len, or another --gpu"
        )
    limits = ReplicaLimits(
        steps.max_num_seqs,
        steps.max_num_batched_tokens,
        LengthLimits(min(most, held)),
        blocks,
        windows=its.windows or (None,),
        enable_prefix_caching=config.enable_prefix_caching,
        max_waiting=asked.max_waiting,
    )
    clock = PlanClock.of_device(spec, sized.costs, device, parallel)
    notes = (
        f"steps are of a roofline of {device.name} that reaches usual parts of its peaks, and "
        "assumes a front end as fast as ours: believe comparisons rather than milliseconds",
    )
    return Setup(
        asked.name,
        limits,
        clock,
        ASSUMED,
        asked.replicas,
        asked.routing,
        options=dict(asked.options),
        notes=notes,
    )


@dataclass(frozen=True)
class Planned:
    """What the engine would run here for a configuration."""

    asked: Configuration
    engine_plan: EnginePlan

    @classmethod
    def of(cls, asked: Configuration, hardware: Hardware | None = None) -> Planned:
        """``hardware`` is by default the machine as it is now. Raises ConfigError for what cannot
        be simulated, and what planning an engine raises."""
        _refuse(
            asked.engine,
            ("speculative",),
            "cannot be simulated yet: how many drafts are accepted depends on the texts; leave it "
            "out",
        )
        _refuse(
            asked.engine,
            ("tensor_parallel", "pipeline_parallel", "pipeline_stages"),
            "cannot be simulated yet: steps are modelled of one process; leave it out",
        )
        if asked.tensor != 1:
            raise ConfigError(f"{asked.name}: tp is for --gpu; a model runs on one device here")
        return cls(asked, plan_engine(asked.engine, open_model(asked.engine), hardware=hardware))

    @cached_property
    def key(self) -> ModelKey:
        """What a calibration must be of."""
        plan, config = self.engine_plan, self.engine_plan.config
        return ModelKey.of(plan.plan, plan.spec.architecture, config.backend, config.threads)


def measurable(several: Sequence[Planned]) -> EngineConfig:
    """The options of an engine whose steps are those of all of these, which have one key."""
    limits = [each.engine_plan.config for each in several]
    return msgspec.structs.replace(
        several[0].asked.engine,
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
    found = next((known for known in calibrations if known.key == each.key), None)
    if found is None:
        told = "; ".join(
            f"{known.model}: {', '.join(known.key.differences(each.key))}" for known in calibrations
        )
        raise ConfigError(
            f"{asked.name}: no calibration is of what it runs ({told}); make one with the same "
            "options (penstock calibrate MODEL --out FILE), and name both by --calibration"
        )
    notes = [f"calibrated {found.made}: the median error of its steps is {found.steps.error:.1%}"]
    if found.check:
        notes.append(f"a load of the calibration, {found.check}")
    setup = measured_setup(asked.name, planned, found.steps, found.front)
    return replace(
        setup,
        limits=replace(setup.limits, max_waiting=asked.max_waiting),
        replicas=asked.replicas,
        routing=asked.routing,
        template=found.template,
        covered=found.covered,
        options=dict(asked.options),
        notes=notes,
    )


def measured_setup(name: str, planned: EnginePlan, times: StepTimes, front: FrontTimes) -> Setup:
    """One server of what was planned, whose steps were measured."""
    config = planned.config
    limits = ReplicaLimits(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        config.lengths,
        config.num_blocks,
        windows=planned.plan.kv_groups.windows or (None,),
        states=state_limits(planned),
        enable_prefix_caching=config.enable_prefix_caching,
    )
    return Setup(name, limits, MeasuredClock(times), front)


def _refuse(config: EngineConfig, names: Sequence[str], why: str) -> None:
    usual = EngineConfig()
    for name in names:
        if getattr(config, name) != getattr(usual, name):
            raise ConfigError(f"{name} {why}")
