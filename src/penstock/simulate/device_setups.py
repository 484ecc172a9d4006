"""Setups on devices of the catalogue, by their rooflines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends.registry import backend, multiplied_as_stored
from penstock.cache.geometry import sequence_blocks, tokens_in
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.length_limits import LengthLimits
from penstock.models.spec import ModelSpec
from penstock.resolve.step_limits import decide_step_limits
from penstock.simulate.configuration import Configuration, refuse
from penstock.simulate.front_end import FrontTimes
from penstock.simulate.plan_clock import stages_of, windows_of
from penstock.simulate.setup import ReplicaLimits, Setup
from penstock.sizing.accelerator import Accelerator
from penstock.sizing.configuration import MEMORY_USED
from penstock.sizing.fabric import Fabric
from penstock.sizing.model import Precision, SizedModel, SizedPlan
from penstock.sizing.parallel import Parallelism
from penstock.sizing.pipeline import Part, PipelineTime

ASSUMED: Final = FrontTimes(request=0.003, prompt_token=1e-6, answer=0.001, chunk=25e-6)
"""What a server takes besides its steps, where nobody measured it: as ours does on a CPU of 2025
(benchmarks/server)."""

_TAKEN: Final = (
    *("model", "ignore_config_field", "quantization", "kv_cache_dtype", "kv_cache_bytes"),
    *("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_prefix_caching"),
    *("tensor_parallel", "pipeline_parallel"),
)
"""Options of the engine that are acted on."""


def on_device(asked: Configuration, spec: ModelSpec, device: Accelerator) -> Setup:
    """A setup on a device of the catalogue, or on several that share the model. Raises ConfigError
    where the model does not fit, or for options that this cannot take into account."""
    config = asked.engine
    if asked.prefill:
        raise ConfigError(
            f"{asked.name}: prefill={asked.prefill} is simulated of machines that were calibrated, "
            "since engines hand over on a CPU alone; leave it or --gpu out"
        )
    refuse(
        config,
        [name for name in EngineConfig.__struct_fields__ if name not in _TAKEN],
        "is not taken into account with --gpu; leave it out",
    )
    if spec.quantized is not None and spec.quantized.schemes and config.quantization != "none":
        raise ConfigError(f"{asked.name}: the checkpoint is quantized already; leave that out")
    parallel = Parallelism(config.tensor_parallel, config.pipeline_parallel)
    if min(parallel.tensor, parallel.pipeline) < 1:
        raise ConfigError(f"{asked.name}: tensor_parallel and pipeline_parallel are at least 1")
    fabric = Fabric.of(device, asked.network)
    steps = decide_step_limits(config, backend("cuda" if device.kind == "gpu" else "cpu").defaults)
    precision = Precision(config.quantization, config.kv_dtype(spec.dtype))
    budget = steps.max_num_batched_tokens
    model = SizedModel(spec, multiplied_as_stored())
    try:
        fabric.check(parallel, device.name)
        parts = model.parts(device.kind, precision, budget, parallel)
    except ConfigError as error:
        raise ConfigError(f"{asked.name}: {error}") from None
    whole = model.plan(device.kind, precision, budget)
    if whole.footprint.state_bytes:
        raise ConfigError(
            f"{spec.architecture} keeps a state of each sequence, which --gpu cannot simulate yet; "
            "calibrate it on a machine that runs it (penstock calibrate)"
        )
    blocks, most = _cache(asked, spec, device, parallel, whole, parts)
    limits = ReplicaLimits(
        steps.max_num_seqs,
        budget,
        LengthLimits(most),
        blocks,
        windows=whole.footprint.windows or (None,),
        enable_prefix_caching=config.enable_prefix_caching,
        max_waiting=asked.max_waiting,
    )
    shares = [Part.of(each, spec, parallel, fabric) for each in parts]
    time = PipelineTime.of(shares, device, fabric, parallel)
    return Setup(
        asked.name,
        limits,
        stages_of(time, windows_of(whole.costs)),
        ASSUMED,
        asked.replicas,
        asked.routing,
        options=dict(asked.options),
        notes=_notes(device, parallel),
    )


def _cache(
    asked: Configuration,
    spec: ModelSpec,
    device: Accelerator,
    parallel: Parallelism,
    whole: SizedPlan,
    parts: Sequence[SizedPlan],
) -> tuple[int, int]:
    """The blocks of the cache, and the tokens of the longest request. Raises ConfigError."""
    config, windows = asked.engine, whole.footprint.windows
    most = config.max_model_len or spec.max_positions
    if most > spec.max_positions:
        raise ConfigError(
            f"{asked.name}: max_model_len {most:,} exceeds the model's {spec.max_positions:,}"
        )
    memory = device.memory_bytes * MEMORY_USED
    footprints = [part.footprint for part in parts]
    page = sum(its.page_bytes for its in footprints) * parallel.tensor
    rooms = [memory - its.weights - its.activations for its in footprints]
    blocks = min(
        int(room // its.page_bytes) if its.page_bytes else 0
        for room, its in zip(rooms, footprints, strict=True)
    )
    if config.kv_cache_bytes is not None:
        if config.kv_cache_bytes > blocks * page:
            raise ConfigError(
                f"{asked.name}: kv_cache_bytes is {config.kv_cache_bytes:,}, and {device.name} has "
                f"room for {max(blocks * page, 0):,} beside the weights"
            )
        blocks = config.kv_cache_bytes // page
    held = tokens_in(windows, max(blocks, 0), most)
    if blocks < 1 or held < (1 if config.max_model_len is None else most):
        needed = sequence_blocks(windows, most) * max(its.page_bytes for its in footprints)
        raise ConfigError(
            f"{asked.name}: each of {parallel.devices} x {device.name} holds "
            f"{max(int(min(rooms)), 0):,} bytes beside the weights, and a request may need "
            f"{needed:,}; take more devices (tp=, pp=), fewer bits (quantization=, "
            "kv_cache_dtype=), a smaller max_model_len, or another --gpu"
        )
    return blocks, min(most, held)


def _notes(device: Accelerator, parallel: Parallelism) -> tuple[str, ...]:
    notes: tuple[str, ...] = (
        f"steps are of a roofline of {device.name} that reaches usual parts of its peaks, and "
        "assumes a front end as fast as ours: believe comparisons rather than milliseconds",
    )
    if parallel.devices > 1 and device.kind == "gpu":
        notes += ("Penstock itself runs a model on one GPU so far",)
    return notes
